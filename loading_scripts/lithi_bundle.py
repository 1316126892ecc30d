"""The loading script of result bundles, for `datasets` before 4.0.

    load_dataset("loading_scripts/lithi_bundle.py", data_dir="folder", trust_remote_code=True)

All of it is the builder of the package, which must be installed; `datasets` takes the one builder
class that a script holds. From 4.0 on `datasets` runs no scripts: `import lithi_datasets`, then
`load_dataset("lithi_bundle", data_dir="folder")`, which works on 3.6 too.
"""

from lithi_datasets.builder import LithiBundle

__all__ = ["LithiBundle"]
