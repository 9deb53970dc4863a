//! The settings of a location.

use std::time::Duration;

use super::script::Script;
use super::tls::Tls;
use crate::site::settings::{Key, Settings};

/// Settings.
#[derive(Debug, Clone)]
pub struct Conf {
    pub(super) server_rewrite: Option<Script>,
    pub(super) rewrite: Option<Script>,
    pub(super) access: Option<Script>,
    pub(super) precontent: Option<Script>,
    pub(super) header_filter: Option<Script>,
    pub(super) body_filter: Option<Script>,
    pub(super) log: Option<Script>,
    pub(super) client_hello: Option<Script>,
    pub(super) session_fetch: Option<Script>,
    pub(super) session_store: Option<Script>,
    pub(super) certificate: Option<Script>,
    /// `preread_by_lua` in `stream`
    pub(super) preread: Option<Script>,
    /// `content_by_lua` in `stream`
    pub(super) session: Option<Script>,
    /// `rewrite_by_lua_no_postpone`
    pub(super) early_rewrite: bool,
    /// `access_by_lua_no_postpone`
    pub(super) early_access: bool,
    /// `precontent_by_lua_no_postpone`
    pub(super) early_precontent: bool,
    pub(super) need_request_body: bool,
    pub(super) http10_buffering: bool,
    pub(super) check_client_abort: bool,
    /// `lua_max_run_time`; zero is no limit.
    pub(super) max_run_time: Duration,
    pub(super) use_default_type: bool,
    pub(super) underscores: bool,
    pub(super) socket_log_errors: bool,
    pub(super) connect_timeout: Duration,
    pub(super) send_timeout: Duration,
    pub(super) read_timeout: Duration,
    pub(super) keepalive_timeout: Duration,
    pub(super) pool_size: u64,
    pub(super) tls: Tls,
}

impl Default for Conf {
    fn default() -> Self {
        let minute = Duration::from_secs(60);
        Conf {
            server_rewrite: None,
            rewrite: None,
            access: None,
            precontent: None,
            header_filter: None,
            body_filter: None,
            log: None,
            client_hello: None,
            session_fetch: None,
            session_store: None,
            certificate: None,
            preread: None,
            session: None,
            early_rewrite: false,
            early_access: false,
            early_precontent: false,
            need_request_body: false,
            http10_buffering: true,
            check_client_abort: false,
            max_run_time: Duration::ZERO,
            use_default_type: true,
            underscores: true,
            socket_log_errors: true,
            connect_timeout: minute,
            send_timeout: minute,
            read_timeout: minute,
            keepalive_timeout: minute,
            pool_size: 30,
            tls: Tls::default(),
        }
    }
}

impl Settings for Conf {}

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();
