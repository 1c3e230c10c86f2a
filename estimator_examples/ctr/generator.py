# SPDX-License-Identifier: Apache-2.0
"""Made-up clicks in the shape of Criteo's data, whose true logits are known.

A record has 26 categorical and 13 integer features. Some of them are missing. Each id has a weight
of its own, which goes into the record's logit. So do some pairs of ids and the integers. The label
is drawn from the logit. A model that knew all weights would have the AUC of the logits themselves,
and no model can have more: the ceiling.

Records are independent of each other, and so are the fields. Real logs have sessions, and repeat
ids more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from zipf import Zipf, support

# Distinct ids of each categorical feature in the Criteo Kaggle data, and its number of records.
CARDINALITIES = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
RECORDS = 45_840_617
INTEGERS = 13
# How often a value is missing: never in most features, three times out of four in one of each kind.
IDS_MISSING = (
    0, 0, 0.03, 0.03, 0, 0.12, 0, 0, 0, 0, 0, 0.03, 0,
    0, 0, 0.03, 0, 0, 0.44, 0.44, 0.03, 0.76, 0, 0.03, 0.44, 0.44,
)  # fmt: skip
INTEGERS_MISSING = (0.45, 0, 0.21, 0.22, 0.03, 0.22, 0.04, 0, 0.04, 0.45, 0.04, 0.76, 0.22)
MISSING = -1  # among integers; among ids it is 0
# Mean and spread of log(1 + integer).
LOG_MEAN = (1.2, 3.0, 2.0, 1.7, 8.5, 3.8, 1.8, 2.2, 4.0, 0.5, 1.1, 0.8, 1.7)
LOG_SPREAD = (1.0, 1.6, 1.2, 0.9, 2.0, 1.5, 1.2, 0.9, 1.2, 0.4, 0.8, 0.5, 0.9)
# Pairs of features. Each of their ids has a vector, and the vectors' product is a weight.
CROSSES = ((5, 8), (16, 19), (13, 22), (21, 24), (4, 5))

# The spread of the weights. Those of features with many ids are small: most of their ids come too
# rarely for anybody to learn their weights.
MANY = 2000
OF_AN_ID, OF_ONE_OF_MANY, OF_A_CROSS, OF_AN_INTEGER = 0.5, 0.1, 0.25, 0.15

_U64 = np.uint64


@dataclass(frozen=True)
class Records:
    """n records."""

    categorical: np.ndarray
    """int64 [n, 26]: ids, hashes from 1 to 2 ** 63 - 1; 0 where missing."""
    integers: np.ndarray
    """int32 [n, 13], MISSING where missing."""
    labels: np.ndarray
    """float32 [n]: 1 for a click."""
    logits: np.ndarray
    """float32 [n]: from which the labels were drawn."""

    def __len__(self) -> int:
        return len(self.labels)


def mix(values: np.ndarray) -> np.ndarray:
    """uint64 to uint64, one to one: the finalizer of splitmix64 (Steele, Lea, Flood 2014)."""
    with np.errstate(over="ignore"):
        values = values + _U64(0x9E3779B97F4A7C15)
        values = (values ^ (values >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> _U64(27))) * _U64(0x94D049BB133111EB)
    return values ^ (values >> _U64(31))


def uniform_of(hashes: np.ndarray) -> np.ndarray:
    """float64 in (0, 1) from uint64."""
    return ((hashes >> _U64(11)).astype(np.float64) + 0.5) * 2.0**-53


def normal_of(hashes: np.ndarray) -> np.ndarray:
    """Standard normal float64 from uint64 (Box and Muller 1958)."""
    radius = np.sqrt(-2 * np.log(uniform_of(hashes)))
    return radius * np.cos(2 * np.pi * uniform_of(mix(hashes)))


class Generator:
    """Records by number: the same arguments give the same records, in any order."""

    def __init__(
        self,
        zipf: float = 1.05,
        seed: int = 11,
        drift: float = 0.0,
        clicks: float = 0.25,
        cardinalities: tuple[int, ...] = CARDINALITIES,
    ) -> None:
        """zipf: the exponent of the ids' frequencies. Their support is as wide as it must be for
        the published number of distinct ids among as many records.

        drift: which part of the ids is replaced by new ones in an hour; clicks: part of the labels
        that are 1, without drift; cardinalities: other distinct ids of the 26 features.
        """
        self._seed, self._drift = seed, drift
        self._fields = [Zipf(zipf, support(zipf, one, RECORDS)) for one in cardinalities]
        self._spreads = np.where(np.array(cardinalities) < MANY, OF_AN_ID, OF_ONE_OF_MANY)
        self._integer_weights = OF_AN_INTEGER * normal_of(mix(self._keys(INTEGERS, 1)))
        self._bias = 0.0
        sample = self._features(np.random.default_rng([seed, 2]), 1 << 14, 0.0)[2]
        self._bias = _bias_for(sample, clicks)

    def _keys(self, count: int, kind: int) -> np.ndarray:
        """uint64 [count]: for hashes that are used nowhere else."""
        start = mix(np.array([self._seed], np.uint64) + _U64(kind << 32))
        return start ^ np.arange(count, dtype=np.uint64)

    def records(self, count: int, *numbers: int, hour: float = 0.0) -> Records:
        """So many records. numbers: which ones; the ids are those of this hour."""
        generator = np.random.default_rng([self._seed, 3, *numbers])
        categorical, integers, logits = self._features(generator, count, hour)
        labels = generator.random(count) < 1 / (1 + np.exp(-logits))
        return Records(categorical, integers, labels.astype(np.float32), logits.astype(np.float32))

    def _features(
        self, generator: np.random.Generator, count: int, hour: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids, integers and logits."""
        fields = range(len(self._fields))
        ids = np.stack([self._ids(generator, count, field, hour) for field in fields], axis=1)
        keys = self._keys(len(fields), 4)
        hashed = mix(ids.astype(np.uint64) ^ keys)
        logits = self._bias + normal_of(hashed) @ self._spreads
        vectors = np.stack([normal_of(mix(hashed ^ _U64(axis + 1))) for axis in range(2)])
        for one, other in CROSSES:
            products = (vectors[:, :, one] * vectors[:, :, other]).sum(axis=0)
            logits += OF_A_CROSS * np.sqrt(0.5) * products
        spreads = generator.standard_normal((count, INTEGERS))
        integers = np.expm1(np.array(LOG_MEAN) + np.array(LOG_SPREAD) * spreads)
        integers = np.clip(np.rint(integers), 0, np.iinfo(np.int32).max).astype(np.int32)
        missing = generator.random((count, INTEGERS)) < INTEGERS_MISSING
        integers[missing] = MISSING
        logits += np.where(missing, 0, spreads) @ self._integer_weights
        return ids, integers, logits

    def _ids(
        self, generator: np.random.Generator, count: int, field: int, hour: float
    ) -> np.ndarray:
        """int64 [count]: the ids of one feature. Frequent ones are not neighbours."""
        keys = self._keys(len(self._fields), 5)[field]
        hashed = mix(self._fields[field].draw(generator, count).astype(np.uint64) ^ mix(keys))
        if self._drift:
            # An id lives for 1 / drift hours. Each hour that part of them comes to its end.
            lives = np.floor(uniform_of(mix(hashed)) + hour * self._drift)
            hashed = np.where(lives > 0, mix(hashed + lives.astype(np.uint64)), hashed)
        ids = np.maximum(hashed >> _U64(1), _U64(1)).astype(np.int64)
        ids[generator.random(count) < IDS_MISSING[field]] = 0
        return ids


def _bias_for(logits: np.ndarray, clicks: float) -> float:
    """What to add to the logits, so that the labels' mean is `clicks`."""
    low, high = -20.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        enough = np.mean(1 / (1 + np.exp(-(logits + middle)))) > clicks
        low, high = (low, middle) if enough else (middle, high)
    return low
