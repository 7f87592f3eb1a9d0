import functools
import ssl
from collections.abc import Iterator

import pytest

#: Tests of the contract that are long for a ``slow`` database: of the fast ones, some of each kind run them always.
LONG = (
    "test_a_discard_that_was_killed_at_its_end_is_completed",
    "test_a_file_that_the_application_emptied",
    "test_a_file_that_was_written_to_since_the_run_can_only_be_discarded",
    "test_a_lazy_search_writes_the_rows_that_it_encodes",
    "test_a_map_of_another_width_is_refused_before_anything_is_written",
    "test_a_step_that_fails_on_the_way_is_done_or_not",
    "test_a_store_is_the_same_by_every_path_to_it",
    "test_a_table_that_the_application_emptied",
    "test_a_vector_that_the_application_removed_does_not_come_back",
    "test_deleted_rows_are_counted",
    "test_discard_leaves_nothing",
    "test_every_element_type",
    "test_names_that_are_not_there_are_refused",
    "test_new_vectors_are_written_after_the_switch_too",
    "test_nothing_of_ours_stays_after_the_last_step",
    "test_nothing_the_user_sees_changes_before_the_switch",
    "test_no_row_keeps_the_new_models_vector_of_earlier_content",
    "test_old_vectors_stay_while_they_are_the_only_ones",
    "test_a_partial_run_keeps_the_vectors_of_all_other_rows",
    "test_rows_of_another_model_are_refused",
    "test_rows_of_any_norm_are_found_by_the_distance_of_the_search",
    "test_the_plan_says_of_each_step_what_then_happens",
    "test_the_rules_of_a_column_hold_or_the_plan_refuses",
    "test_what_a_killed_last_step_left_is_removed",
    "test_what_the_application_writes_after_the_switch_survives_every_step",
    "test_writing_twice_is_writing_once",
)

#: Tests of the contract that are fast with ids of each type.
EACH_TYPE = ("test_describes", "test_scan_gives", "test_fetch_gives")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests of the contract as long: of ids of a second type, and of slow databases."""
    for item in items:
        cls = getattr(item, "cls", None)
        if not hasattr(cls, "id_types"):
            continue
        id_type = item.callspec.params.get("id_type") if hasattr(item, "callspec") else None
        again = id_type not in (None, cls.id_types[0]) and not item.name.startswith(EACH_TYPE)
        if again or (cls.slow and item.originalname in LONG):
            item.add_marker("long")


@pytest.fixture(scope="session", autouse=True)
def clients_share_what_they_read() -> Iterator[None]:
    """Share certificates and schema among the Qdrant clients that these tests open."""
    from qdrant_client.embed import schema_parser

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", functools.cache(ssl.create_default_context))
        patch.setattr(schema_parser, "deepcopy", lambda schema: schema)
        yield
