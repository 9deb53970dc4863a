//! Built directives that no row of requests and answers can show.

use std::path::Path;

/// Directives with the test that sees what they change: it stands in a file that names the directive.
pub const TESTS: &[(&str, &str)] = &[
    ("accept_balance", "exclusive_gives_six_connections_to_one_loop"),
    ("accept_mutex", "events_say_how_to_wait_and_spread"),
    ("multi_accept", "events_say_how_to_wait_and_spread"),
    ("use", "epoll_serves"),
    ("worker_connections", "a_loop_without_room_closes_idle_connections"),
    ("worker_processes", "workers_and_configurations_share_a_rate"),
    ("worker_threads", "fair_gives_two_to_each"),
    ("worker_cpu_affinity", "workers_become_what_the_configuration_says"),
    ("worker_priority", "workers_become_what_the_configuration_says"),
    ("worker_rlimit_nofile", "workers_become_what_the_configuration_says"),
    ("worker_shutdown_timeout", "workers_that_do_not_finish_in_time_are_ended"),
    ("working_directory", "workers_become_what_the_configuration_says"),
    ("env", "workers_become_what_the_configuration_says"),
    ("daemon", "the_pid_file_moves_with_a_reload"),
    ("master_process", "a_server_without_master_serves"),
    ("pid", "quit_ends_the_server_and_removes_its_files"),
    ("thread_pool", "a_copy_that_does_not_end_leaves_threads_to_readers"),
    ("aio", "a_slow_disk_is_named_where_the_loop_waits_for_it"),
    ("sendfile", "large_files_arrive_whole_whatever_way_they_take"),
    ("listen", "a_reload_replaces_the_workers_and_keeps_the_socket"),
    ("resolver", "names_are_resolved_while_requests_are_served"),
    ("mirror", "a_mirror_gets_the_request_and_the_client_does_not_see_its_answer"),
    ("post_action", "after_an_answer_the_request_goes_on_inside"),
    ("flv", "flash_video_from_a_place_on"),
    ("mp4", "a_span_of_a_film"),
    ("http2_max_concurrent_streams", "streams_beyond_the_limit_are_refused"),
    ("brotli", "answers_are_compressed_for_those_who_take_it"),
    ("brotli_comp_level", "a_small_answer_takes_little_memory_to_compress"),
    ("brotli_min_length", "a_small_answer_takes_little_memory_to_compress"),
    ("zstd", "answers_are_compressed_for_those_who_take_it"),
    ("zstd_comp_level", "a_small_answer_takes_little_memory_to_compress"),
    ("zstd_min_length", "a_small_answer_takes_little_memory_to_compress"),
    // Times: what they bound is looked at in each stage of a connection's life.
    ("client_header_timeout", "times_run_out_as_with_nginx"),
    ("client_body_timeout", "times_run_out_as_with_nginx"),
    ("send_timeout", "times_run_out_as_with_nginx"),
    ("keepalive_time", "times_run_out_as_with_nginx"),
    ("keepalive_min_timeout", "times_run_out_as_with_nginx"),
    ("lingering_time", "times_run_out_as_with_nginx"),
    ("lingering_timeout", "times_run_out_as_with_nginx"),
    ("lingering_close", "times_run_out_as_with_nginx"),
    ("reset_timedout_connection", "times_run_out_as_with_nginx"),
    ("resolver_timeout", "times_run_out_as_with_nginx"),
    ("proxy_connect_timeout", "times_run_out_as_with_nginx"),
    ("proxy_send_timeout", "times_run_out_as_with_nginx"),
    ("proxy_read_timeout", "times_run_out_as_with_nginx"),
    ("proxy_next_upstream_timeout", "times_run_out_as_with_nginx"),
    ("proxy_cache_lock_age", "one_request_fetches_what_many_wait_for"),
    ("proxy_cache_lock_timeout", "one_request_fetches_what_many_wait_for"),
    ("proxy_cache_lock", "one_request_fetches_what_many_wait_for"),
    (
        "proxy_cache_background_update",
        "something_old_is_sent_while_it_is_updated_and_when_it_cannot_be",
    ),
    ("proxy_cache_memory", "a_hit_is_the_same_wherever_it_comes_from"),
    ("proxy_cache_purge", "answers_are_purged_by_key_and_by_prefix"),
    ("proxy_max_temp_file_size", "every_byte_is_right_however_the_client_pauses"),
    ("proxy_request_buffering", "bodies_go_out_whole_or_as_they_come"),
    ("proxy_buffering", "an_answer_that_breaks_off_is_no_answer"),
    ("proxy_ssl_certificate_key", "servers_are_shown_certificates_that_the_request_names"),
    ("proxy_ssl_certificate_cache", "servers_are_shown_certificates_that_the_request_names"),
    ("proxy_ssl_conf_command", "commands_change_what_servers_are_offered"),
    ("proxy_ssl_trusted_certificate", "servers_are_checked_and_connections_to_them_kept"),
    ("health_check", "the_ill_get_no_requests_until_they_are_well"),
    ("match", "the_ill_get_no_requests_until_they_are_well"),
    ("queue", "who_finds_no_server_waits_in_line"),
    ("zone", "max_conns_is_exact_over_workers_and_reloads"),
    ("weir_status", "status_pages_count"),
    ("work", "a_handler_that_holds_the_loop_up_is_named"),
    ("blocked_threshold", "a_handler_that_holds_the_loop_up_is_named"),
    ("ssl_certificate", "the_name_in_the_handshake_chooses_server_and_certificate"),
    ("ssl_certificate_key", "the_name_in_the_handshake_chooses_server_and_certificate"),
    ("ssl_certificate_cache", "certificates_are_found_by_the_name_that_a_client_asks_for"),
    ("ssl_certificate_compression", "certificates_are_compressed_where_both_ends_want_it"),
    ("ssl_client_certificate", "a_clients_certificate_is_judged_over_http"),
    ("ssl_crl", "a_revoked_certificate_is_revoked_in_every_mode"),
    (
        "ssl_early_data",
        "a_request_with_the_first_flight_is_served_before_the_handshake_is_complete",
    ),
    ("ssl_ech_file", "what_only_openssl_has_is_refused_or_ignored"),
    ("ssl_ocsp", "what_was_said_of_a_client_is_kept_for_all_workers"),
    ("ssl_ocsp_cache", "what_was_said_of_a_client_is_kept_for_all_workers"),
    ("ssl_ocsp_responder", "what_was_said_of_a_client_is_kept_for_all_workers"),
    ("ssl_password_file", "a_sealed_key_is_opened_by_its_password"),
    ("ssl_session_cache", "a_cache_resumes_without_tickets_and_a_server_without_both_does_not"),
    ("ssl_session_tickets", "a_cache_resumes_without_tickets_and_a_server_without_both_does_not"),
    ("ssl_stapling", "a_response_is_fetched_before_anybody_asks_for_it"),
    ("ssl_stapling_file", "a_response_is_fetched_before_anybody_asks_for_it"),
    ("ssl_stapling_responder", "a_response_is_fetched_before_anybody_asks_for_it"),
    ("ssl_stapling_verify", "what_the_issuer_does_not_stand_behind_is_not_stapled"),
    ("ssl_trusted_certificate", "what_is_wrong_with_certificates_is_said_before_the_start"),
    ("ssl_verify_depth", "all_faults_of_a_chain_are_judged"),
    ("tunnel_pass", "bytes_go_through"),
    ("init_by_lua_block", "all_phases_run_in_their_order"),
    ("init_worker_by_lua_block", "all_phases_run_in_their_order"),
    ("exit_worker_by_lua_block", "timers_run_without_a_request"),
    ("set_by_lua", "all_phases_run_in_their_order"),
    ("set_by_lua_block", "all_phases_run_in_their_order"),
    ("rewrite_by_lua", "all_phases_run_in_their_order"),
    ("access_by_lua", "all_phases_run_in_their_order"),
    ("access_by_lua_block", "wrong_scripts_are_refused_at_the_start"),
    ("content_by_lua", "the_configurations_of_the_article_answer"),
    ("content_by_lua_block", "requests_are_seen_and_changed"),
    ("content_by_lua_file", "files_are_scripts_and_modules"),
    ("header_filter_by_lua", "all_phases_run_in_their_order"),
    ("header_filter_by_lua_block", "headers_of_the_answer_are_seen_and_changed"),
    ("body_filter_by_lua", "all_phases_run_in_their_order"),
    ("body_filter_by_lua_block", "scripts_and_filters_are_told_apart"),
    ("log_by_lua", "all_phases_run_in_their_order"),
    ("log_by_lua_block", "scripts_and_filters_are_told_apart"),
    ("lua_check_client_abort", "a_script_ends_with_its_client_where_it_is_asked_to"),
    ("lua_package_cpath", "modules_in_c_find_lua_in_the_program"),
    ("lua_package_path", "files_are_scripts_and_modules"),
    ("lua_shared_dict", "dictionaries_are_shared_by_all_workers_and_outlive_a_reload"),
];

/// Directives of which nobody outside sees what they change.
pub const UNSEEN: &[(&str, &[&str])] = &[
    (
        "of the kernel's sockets, or of how bytes are cut into packets and calls",
        &[
            "tcp_nodelay",
            "send_lowat",
            "sendfile_max_chunk",
            "postpone_output",
            "ssl_buffer_size",
            "http2_chunk_size",
            "proxy_socket_keepalive",
            "proxy_socket_rcvbuf",
            "proxy_socket_sndbuf",
            "tunnel_socket_keepalive",
            "tunnel_socket_rcvbuf",
            "tunnel_socket_sndbuf",
        ],
    ),
    (
        "of memory, and of what is opened how often",
        &[
            "proxy_buffers",
            "tunnel_buffer_size",
            "mp4_buffer_size",
            "mp4_max_buffer_size",
            "open_file_cache_min_uses",
            "open_log_file_cache",
            "gzip_window",
            "gzip_comp_level",
            "brotli_window",
            "server_names_hash_bucket_size",
            "worker_rlimit_core",
            "epoll_events",
            "timer_resolution",
            "accept_mutex_delay",
        ],
    ),
    ("an outermost block: nothing is there without it", &["events", "http"]),
    (
        "of times that a test cannot hold apart from those of a busy machine",
        &[
            "limit_rate_after",
            "proxy_limit_rate",
            "open_file_cache_valid",
            "auth_delay",
            "ssl_session_timeout",
        ],
    ),
    ("both programs warn of it and do nothing", &["ssl_engine"]),
    ("no witness yet", NONE_YET),
];

/// What lacks its witness. It grows no longer.
const NONE_YET: &[&str] = &[
    "user",
    "server_tokens",
    "least_conn",
    "least_time",
    "random",
    "load_module",
    "access_by_lua_file",
    "autoindex_localtime",
    "body_filter_by_lua_file",
    "brotli_static",
    "brotli_types",
    "client_body_early_read",
    "exit_worker_by_lua_file",
    "header_filter_by_lua_file",
    "http2_body_preread_size",
    "init_by_lua",
    "init_by_lua_file",
    "init_worker_by_lua",
    "init_worker_by_lua_file",
    "log_by_lua_file",
    "lua_code_cache",
    "lua_http10_buffering",
    "lua_max_pending_timers",
    "lua_max_running_timers",
    "lua_need_request_body",
    "lua_socket_connect_timeout",
    "lua_socket_keepalive_timeout",
    "lua_socket_log_errors",
    "lua_socket_pool_size",
    "lua_socket_read_timeout",
    "lua_socket_send_timeout",
    "lua_ssl_trusted_certificate",
    "lua_ssl_verify_depth",
    "lua_transform_underscores_in_response_headers",
    "lua_use_default_type",
    "mirror_request_body",
    "more_clear_headers",
    "more_clear_input_headers",
    "more_set_headers",
    "more_set_input_headers",
    "mp4_start_key_frame",
    "proxy_ignore_client_abort",
    "proxy_pass_request_body",
    "proxy_ssl_crl",
    "proxy_ssl_password_file",
    "proxy_ssl_verify_depth",
    "rewrite_by_lua_block",
    "rewrite_by_lua_file",
    "set_by_lua_file",
    "ssl_conf_command",
    "ssl_session_ticket_key",
    "tunnel_bind",
    "tunnel_connect_timeout",
    "tunnel_next_upstream",
    "tunnel_next_upstream_timeout",
    "tunnel_next_upstream_tries",
    "tunnel_read_timeout",
    "tunnel_send_timeout",
    "userid_service",
    "zstd_static",
    "zstd_types",
];

/// All of them, with the reason.
pub fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
    let unseen = UNSEEN.iter().flat_map(|(why, names)| names.iter().map(|name| (*name, *why)));
    TESTS.iter().copied().chain(unseen)
}

/// Whether a test of that name stands in a file that names the directive.
pub fn shows(directive: &str, test: &str) -> bool {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = false;
    for directory in ["tests", "crates"] {
        each(&root.join(directory), &mut |text| {
            found |= text.contains(&format!("fn {test}(")) && text.contains(directive);
        });
    }
    found
}

fn each(directory: &Path, look: &mut impl FnMut(&str)) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let own = path.ends_with("witness");
        if path.is_dir() && !own {
            each(&path, look);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            look(&std::fs::read_to_string(&path).unwrap_or_default());
        }
    }
}
