//! Settings of `core`: what a location holds, and what belongs to a server as a whole.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use weir_log::Log;
use weir_proto::http1::HeadLimits;

use crate::body::Linger;
use crate::listen::ListenLine;
use crate::modules::Settings;
use crate::names::ServerName;
use crate::phases::Handler;
use crate::template::Template;

/// Settings of a location.
#[derive(Debug, Clone)]
pub struct Conf {
    /// Who answers, where a directive such as `proxy_pass` says so.
    pub handler: Option<Handler>,
    /// `root` or `alias`
    pub root: Root,
    /// `types`: file name extension to type.
    pub types: Arc<HashMap<Vec<u8>, Vec<u8>>>,
    /// `default_type`
    pub default_type: Vec<u8>,
    /// `error_page`
    pub error_pages: Vec<super::errors::ErrorPage>,
    /// `try_files`
    pub try_files: Option<TryFiles>,
    /// `internal`
    pub internal: bool,
    /// `satisfy any`
    pub satisfy_any: bool,
    /// `error_log`
    pub error_log: Arc<Log>,
    /// `recursive_error_pages`
    pub recursive_error_pages: bool,
    /// `chunked_transfer_encoding`
    pub chunked: bool,
    /// `etag`
    pub etag: bool,
    /// `server_tokens`
    pub server_tokens: Tokens,
    /// `absolute_redirect`
    pub absolute_redirect: bool,
    /// `server_name_in_redirect`
    pub server_name_in_redirect: bool,
    /// `port_in_redirect`
    pub port_in_redirect: bool,
    /// `postpone_output`
    pub postpone_output: u64,
    /// `keepalive_timeout`, first value.
    pub keepalive_timeout: Duration,
    /// `keepalive_timeout`, second value: seconds.
    pub keepalive_header: Option<u64>,
    /// `keepalive_requests`
    pub keepalive_requests: u64,
    /// `keepalive_time`
    pub keepalive_time: Duration,
    /// `send_timeout`
    pub send_timeout: Duration,
    /// `client_body_timeout`
    pub client_body_timeout: Duration,
    /// `client_max_body_size`, 0: no limit.
    pub client_max_body_size: u64,
    /// `lingering_close`
    pub lingering_close: Linger,
    /// `lingering_time`
    pub lingering_time: Duration,
    /// `lingering_timeout`
    pub lingering_timeout: Duration,
    /// `limit_rate`, bytes a second.
    pub limit_rate: Option<Template>,
    /// `limit_rate_after`
    pub limit_rate_after: Option<Template>,
}

/// Where a path's files are.
#[derive(Debug, Clone, Default)]
pub struct Root {
    /// The directory, absolute unless it begins with a variable.
    pub value: Template,
    /// It replaces the location's name.
    pub alias: bool,
    /// Length of the location's name.
    pub alias_of: usize,
    /// A block of its own said so.
    pub set: bool,
}

/// `try_files`: what to look for, and what to do when nothing is there.
#[derive(Debug, Clone)]
pub struct TryFiles {
    /// Paths below the root, and whether a directory is looked for.
    pub names: Vec<(Template, bool)>,
    /// What follows in the end.
    pub fallback: Fallback,
}

/// The last parameter of `try_files`.
#[derive(Debug, Clone)]
pub enum Fallback {
    /// A status.
    Status(u16),
    /// A path or a named location.
    Path(Template),
}

/// `server_tokens`
#[derive(Debug, Clone)]
pub struct Tokens(Vec<u8>);

impl Tokens {
    /// With the version, or the name alone.
    pub fn new(version: bool) -> Tokens {
        Tokens(if version {
            format!("weir/{}", crate::VERSION).into_bytes()
        } else {
            b"weir".to_vec()
        })
    }

    /// What `Server:` and weir's own pages show.
    pub fn signature(&self) -> &[u8] {
        &self.0
    }
}

impl Default for Conf {
    fn default() -> Self {
        Conf {
            handler: None,
            root: Root::default(),
            types: Arc::new(default_types()),
            default_type: b"text/plain".to_vec(),
            error_pages: Vec::new(),
            try_files: None,
            internal: false,
            satisfy_any: false,
            error_log: Arc::new(Log::new(Vec::new())),
            recursive_error_pages: false,
            chunked: true,
            etag: true,
            server_tokens: Tokens::new(true),
            absolute_redirect: true,
            server_name_in_redirect: false,
            port_in_redirect: true,
            postpone_output: 1460,
            keepalive_timeout: Duration::from_secs(75),
            keepalive_header: None,
            keepalive_requests: 1000,
            keepalive_time: Duration::from_secs(3600),
            send_timeout: Duration::from_secs(60),
            client_body_timeout: Duration::from_secs(60),
            client_max_body_size: 1024 * 1024,
            lingering_close: Linger::On,
            lingering_time: Duration::from_secs(30),
            lingering_timeout: Duration::from_secs(5),
            limit_rate: None,
            limit_rate_after: None,
        }
    }
}

/// The types that nginx knows without a `types` block.
fn default_types() -> HashMap<Vec<u8>, Vec<u8>> {
    [("html", "text/html"), ("gif", "image/gif"), ("jpg", "image/jpeg")]
        .map(|(extension, kind)| (extension.as_bytes().to_vec(), kind.as_bytes().to_vec()))
        .into()
}

impl Settings for Conf {
    fn enter(conf: &mut Arc<Self>) {
        let this = Arc::make_mut(conf);
        (this.handler, this.try_files, this.internal) = (None, None, false);
        this.root.set = false;
    }
}

/// Settings of a server.
#[derive(Debug, Clone)]
pub struct ServerConf {
    /// `client_header_buffer_size`, `large_client_header_buffers`, `merge_slashes` and kin.
    pub head_limits: HeadLimits,
    /// `client_header_timeout`
    pub client_header_timeout: Duration,
    /// `listen`, so far.
    pub listens: Vec<ListenLine>,
    /// `server_name`, so far.
    pub names: Vec<ServerName>,
    /// The first name as written.
    pub first_name: Option<String>,
}

impl Default for ServerConf {
    fn default() -> Self {
        ServerConf {
            head_limits: HeadLimits::default(),
            client_header_timeout: Duration::from_secs(60),
            listens: Vec::new(),
            names: Vec::new(),
            first_name: None,
        }
    }
}
