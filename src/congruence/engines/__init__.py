"""Process many files on one or several machines, split by fragments and journaled: Ray, Spark, Daft, Dask."""

from congruence._utils.engine import Engine, LocalEngine, RayEngine
from congruence.engines.dataset import DataSet, Fragment, ItemSet, PairedData, open_dataset, open_itemset, open_pairs
from congruence.engines.embed import EmbedDataSetReport, embed_dataset
from congruence.engines.fit import fit_dataset
from congruence.engines.jobs import DataSetReport
from congruence.engines.sample import read_sample
from congruence.engines.transform import MapBatch, transform_dataset

__all__ = [
    "DataSet",
    "DataSetReport",
    "EmbedDataSetReport",
    "Engine",
    "Fragment",
    "ItemSet",
    "LocalEngine",
    "MapBatch",
    "PairedData",
    "RayEngine",
    "embed_dataset",
    "fit_dataset",
    "open_dataset",
    "open_itemset",
    "open_pairs",
    "read_sample",
    "transform_dataset",
]
