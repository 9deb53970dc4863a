//! A real loop on the loopback, the same laws for every backend.

mod laws;
pub(crate) mod site;

macro_rules! backends {
    ($($topic:ident: $($law:ident),+;)+) => {
        mod epoll { $($( #[test] fn $law() { super::laws::$topic::$law(crate::BackendKind::Epoll); } )+)+ }
        mod poll { $($( #[test] fn $law() { super::laws::$topic::$law(crate::BackendKind::Poll); } )+)+ }
        mod select { $($( #[test] fn $law() { super::laws::$topic::$law(crate::BackendKind::Select); } )+)+ }
        mod io_uring { $($( #[test] fn $law() { super::with_io_uring(super::laws::$topic::$law); } )+)+ }
    };
}

backends! {
    streams:
        an_echo_comes_back,
        what_is_there_needs_no_event,
        what_was_received_does_not_arrive_again,
        what_comes_later_is_reported,
        a_refused_socket_reports_an_error,
        a_long_answer_arrives_whole,
        half_close_is_the_end_of_the_stream_not_of_the_connection,
        a_departed_peer_is_noticed,
        a_deadline_ends_a_wait,
        a_deadline_that_moves_later_does_not_fire,
        connecting_and_being_refused,
        datagrams_come_and_go;
    files:
        a_file_follows_its_head,
        a_cold_file_is_read_elsewhere_and_arrives;
    parked:
        a_parked_connection_resumes,
        a_parked_connection_has_a_deadline,
        what_was_parked_readable_resumes,
        the_oldest_parked_is_evicted_first,
        some_of_the_parked_are_chosen,
        a_connection_rests_in_its_task,
        a_rest_without_a_budget_has_another_turn_first,
        a_stream_moves_to_another_loop;
    turns:
        a_stale_event_is_dropped,
        accepts_then_connections_then_timers,
        a_turn_counts_what_it_did,
        a_remote_post_wakes_the_loop,
        any_holder_of_the_notifier_wakes_the_loop,
        a_disarmed_listener_stays_silent,
        a_watch_is_called_while_readable,
        between_heavy_work_others_are_served,
        heavy_work_that_is_given_up_is_forgotten,
        the_loop_s_end_closes_everything;
    tasks:
        a_foreign_waker_wakes_its_task,
        a_combinator_with_its_own_wakers_works,
        a_thousand_sleeps_end_in_order,
        a_panic_ends_one_task_only,
        a_panic_while_accepting_costs_one_connection,
        a_task_that_wakes_itself_starves_no_other,
        a_task_without_budget_lets_others_go_first,
        a_task_without_budget_sends_once;
}

/// Kernels and containers without it are common.
fn with_io_uring(law: impl Fn(crate::BackendKind)) {
    let kind = crate::BackendKind::IoUring;
    match kind.check() {
        Ok(()) => law(kind),
        Err(e) => eprintln!("not tried, io_uring: {e}"),
    }
}
