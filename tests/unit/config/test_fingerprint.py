"""Does a fingerprint change exactly when a value does, and are differences named by key?"""

from dataclasses import dataclass, field, replace

from thinwire.base.files import canonical_json, sha256_text
from thinwire.config.fingerprint import as_record, differing_keys, fingerprint, flatten


@dataclass(frozen=True)
class Inner:
    rate: float = 1e-3
    sizes: tuple[int, ...] = (1, 2)


@dataclass(frozen=True)
class Outer:
    seed: int = 1
    inner: Inner = field(default_factory=Inner)


def test_equal_values_equal_fingerprints() -> None:
    assert fingerprint(Outer()) == fingerprint(Outer())
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert len(fingerprint(Outer())) == 64


def test_any_changed_value_changes_it() -> None:
    variants = [
        Outer(),
        Outer(seed=2),
        Outer(inner=Inner(rate=1e-3 * (1 + 2**-52))),
        Outer(inner=Inner(sizes=(2, 1))),
        replace(Outer(), inner=Inner(sizes=())),
    ]
    assert len({fingerprint(variant) for variant in variants}) == len(variants)


def test_parts_are_kept_apart_and_in_order() -> None:
    prints = {fingerprint("ab", "c"), fingerprint("a", "bc"), fingerprint("c", "ab"), fingerprint(["ab", "c"])}
    assert len(prints) == 4


def test_known_value() -> None:
    """Run folders are matched by it across versions: SHA-256 of ``[{"rate":0.001,"sizes":[1,2]}]``."""
    assert fingerprint(Inner()) == "51b04a29565dc6f43fc8b0854b85210eb57adcdbd58baf95ab08eeda67d18b23"


def test_flatten_joins_keys_with_dots() -> None:
    assert flatten(as_record(Outer())) == {"seed": 1, "inner.rate": 1e-3, "inner.sizes": (1, 2)}


def test_differing_keys_name_both_values() -> None:
    old = {"seed": 1, "inner": {"rate": 0.1, "gone": 3}, "same": [1]}
    new = {"seed": 2, "inner": {"rate": 0.1, "fresh": None, "added": 4}, "same": [1]}
    assert differing_keys(old, new) == [
        "inner.added: None there, 4 now",
        "inner.gone: 3 there, None now",
        "seed: 1 there, 2 now",
    ]
    assert differing_keys(old, old) == []


def test_dataclasses_count_by_value_at_any_depth() -> None:
    assert fingerprint([Inner()], {"a": (1, Inner())}) == fingerprint(
        [as_record(Inner())], {"a": [1, as_record(Inner())]}
    )
    assert fingerprint([Inner()]) != fingerprint([Inner(rate=7.0)])


def test_plain_inputs_keep_the_fingerprint_they_had() -> None:
    """Parts that were kept stay valid."""
    plain = [1, (2.5, "three"), {"b": None, "a": [True, {"c": ()}]}]
    assert fingerprint(plain, "text", "0.1") == sha256_text(canonical_json([plain, "text", "0.1"]))
