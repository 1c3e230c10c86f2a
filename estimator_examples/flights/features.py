# SPDX-License-Identifier: Apache-2.0
"""What is known of a flight before it leaves: the rows of the CSV files as categories and numbers.

Schedule, aircraft, crowding, and the weather at the origin as observed until the hour before the
scheduled one (an observation belongs to the hour in which it was made, often its last minutes: the
one of the scheduled hour may be younger than the departure). Of what happened afterwards, dep_time,
dep_delay, arr_time and air_time are never read; who was late on the days before is (history.py).
"""

from __future__ import annotations

import datetime
import math
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable

CATEGORICAL = (
    "carrier", "origin", "dest", "tailnum", "flight", "day", "weekday", "dep_hour", "arr_hour",
    "model",
)  # fmt: skip
OBSERVED = ("temp", "dewp", "humid", "wind_speed", "wind_gust", "precip", "pressure", "visib")
AVERAGED = ("precip", "visib", "wind_speed", "wind_gust")  # over PAST_HOURS hours
CHANGED = ("temp", "pressure")  # against PAST_HOURS hours earlier
PAST_HOURS = 6
ROTATION_CAP = 900.0  # minutes
# Late rates of the days before: flights that count together, and when a day counts half (days).
HISTORY = (
    ("origin", 1), ("carrier", 1), ("dest", 1),
    ("carrier", 14), ("dest", 14), ("tailnum", 14), ("flight", 60),
)  # fmt: skip
NUMERIC = (
    *OBSERVED, "wind_east", "wind_north", "weather_missing", "pressure_missing",
    *(f"{name}_mean" for name in AVERAGED), *(f"{name}_change" for name in CHANGED),
    "dep_day_sin", "dep_day_cos", "dep_minute", "duration", "log_distance",
    "aircraft_age", "seats", "flight_of_aircraft", "minutes_since_aircraft", "aircraft_first",
    "departures_hour_before", "departures_hour", "departures_hour_after",
    *(f"late_{name}_{days}d" for name, days in HISTORY),
)  # fmt: skip

Row = dict[str, str]


def number(text: str) -> float:
    """A field as a number, NaN when the file says NA."""
    return math.nan if text in ("", "NA") else float(text)


def hashed(column: str, value: str) -> int:
    """31 bits that stand for this value of this column, the same on every machine."""
    return zlib.crc32(f"{column}={value}".encode()) & 0x7FFFFFFF


def clock(hhmm: str) -> int:
    """Minutes since midnight of a time written as HHMM without leading zeros."""
    return int(hhmm) // 100 * 60 + int(hhmm) % 100


class Hours(dict[str, int]):
    """The time_hour column as hours since 1970, each text parsed once."""

    def __missing__(self, text: str) -> int:
        moment = datetime.datetime.strptime(text + "+0000", "%Y-%m-%dT%H:%M:%SZ%z")
        self[text] = int(moment.timestamp()) // 3600
        return self[text]


class Weather:
    """The observations at the three airports, by airport and hour."""

    def __init__(self, table: Iterable[Row], hours: Hours) -> None:
        self.rows = {(row["origin"], hours[row["time_hour"]]): row for row in table}
        self.known: dict[tuple[str, int], list[float]] = {}

    @staticmethod
    def value(row: Row | None, name: str) -> float:
        """One observed number, NaN without an observation."""
        value = math.nan if row is None else number(row[name])
        if name == "precip":  # a few hundredths of an inch matter, and inches are rare
            return math.log1p(50 * value)
        if name == "wind_gust" and row is not None and math.isnan(value):
            return 0.0  # the stations report a gust only when there is one
        return value

    def last_hour(self, row: Row | None) -> list[float]:
        """The numbers of OBSERVED, the wind as a vector in mph, two marks for missing values."""
        if row is None:
            return [math.nan] * (len(OBSERVED) + 2) + [1.0, 1.0]
        values = [self.value(row, name) for name in OBSERVED]
        speed, angle = number(row["wind_speed"]), math.radians(number(row["wind_dir"]))
        east, north = speed * math.sin(angle), speed * math.cos(angle)
        if math.isnan(east):  # no direction: calm or turning
            east = north = 0.0
        return [*values, east, north, 0.0, float(math.isnan(number(row["pressure"])))]

    def averages(self, rows: list[Row | None]) -> list[float]:
        """The means of AVERAGED over the hours that have an observation."""
        means = []
        for name in AVERAGED:
            seen = [value for row in rows if not math.isnan(value := self.value(row, name))]
            means.append(sum(seen) / len(seen) if seen else math.nan)
        return means

    def before(self, origin: str, hour: int) -> list[float]:
        """What was observed at the origin before this hour began."""
        key = (origin, hour)
        if key not in self.known:
            past = [self.rows.get((origin, hour - back)) for back in range(1, PAST_HOURS + 2)]
            last, earliest = past[0], past[-1]
            changes = [self.value(last, name) - self.value(earliest, name) for name in CHANGED]
            self.known[key] = self.last_hour(last) + self.averages(past[:-1]) + changes
        return self.known[key]


class Schedule:
    """What the whole schedule says about one flight; cancelled flights were scheduled too."""

    def __init__(self, flights: list[Row], hours: Hours) -> None:
        self.hours = hours
        self.in_hour = Counter((row["origin"], hours[row["time_hour"]]) for row in flights)
        self.aircraft_days: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for row in flights:
            if row["tailnum"] != "NA":
                self.aircraft_days[(row["tailnum"], *self.date(row))].append(
                    clock(row["sched_dep_time"])
                )
        for departures in self.aircraft_days.values():
            departures.sort()

    @staticmethod
    def date(row: Row) -> tuple[str, str]:
        """The day within the year."""
        return row["month"], row["day"]

    def rotation(self, row: Row) -> list[float]:
        """How often the aircraft left New York earlier that day, minutes since then, a mark."""
        leaves = clock(row["sched_dep_time"])
        departures = self.aircraft_days.get((row["tailnum"], *self.date(row)), [leaves])
        earlier = departures.index(leaves)
        if earlier == 0:
            return [0.0, ROTATION_CAP, 1.0]
        return [float(earlier), min(ROTATION_CAP, leaves - departures[earlier - 1]), 0.0]

    def crowding(self, row: Row) -> list[float]:
        """Departures scheduled at the origin in the hour before, this one and the next."""
        hour = self.hours[row["time_hour"]]
        return [float(self.in_hour[row["origin"], hour + near]) for near in (-1, 0, 1)]


def categories(flight: Row, plane: Row | None) -> list[int]:
    """The hashes of CATEGORICAL."""
    date = datetime.date(int(flight["year"]), int(flight["month"]), int(flight["day"]))
    values = (
        flight["carrier"],
        flight["origin"],
        flight["dest"],
        flight["tailnum"],
        flight["carrier"] + flight["flight"],
        date.isoformat(),
        str(date.weekday()),
        flight["hour"],
        str(clock(flight["sched_arr_time"]) // 60),
        "NA" if plane is None else plane["model"],
    )
    return [hashed(column, value) for column, value in zip(CATEGORICAL, values)]


def numbers(flight: Row, plane: Row | None, weather: Weather, schedule: Schedule) -> list[float]:
    """The values of NUMERIC but for HISTORY, NaN where unknown."""
    leaves, arrives = clock(flight["sched_dep_time"]), clock(flight["sched_arr_time"])
    turn = 2 * math.pi * leaves / 1440
    return [
        *weather.before(flight["origin"], schedule.hours[flight["time_hour"]]),
        math.sin(turn),
        math.cos(turn),
        float(leaves),
        float((arrives - leaves) % 1440),
        math.log(float(flight["distance"])),
        math.nan if plane is None else 2013 - number(plane["year"]),
        math.nan if plane is None else number(plane["seats"]),
        *schedule.rotation(flight),
        *schedule.crowding(flight),
    ]
