"""What version 5 says of rotation, in the fields of version 4."""

from __future__ import annotations

from scripts.older_configs import older, older_rope


def test_fields_in_place_of_rope_parameters() -> None:
    rope = {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5}
    plain = {"rope_theta": 5e5, "partial_rotary_factor": 0.5, "rope_scaling": None}
    assert older_rope(rope) == plain
    scaled = {"rope_type": "linear", "factor": 8.0}
    by_layer = {"full_attention": scaled | {"rope_theta": 1e6}, "sliding_attention": rope}
    made = {"rope_theta": 1e6, "rope_local_base_freq": 5e5, "rope_scaling": scaled}
    assert older_rope(by_layer) == made


def test_unknown_classes_have_none() -> None:
    assert older({"model_type": "no_such_model"}) is None
