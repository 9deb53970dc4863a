//! Settings of `core` for a location.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use weir_log::Log;
use weir_proto::conditional::ModifiedSince;
use weir_proto::http1::Method;

use crate::body::Linger;
use crate::files::aio::Aio;
use crate::files::cache::OpenFiles;
use crate::files::symlinks::Symlinks;
use crate::files::temp_file::TempPath;
use crate::site::content::Content;
use crate::site::location::{Kind, LocationId};
use weir_quic::{Congestion, HostKey};
use weir_resolver::ResolverConf as Resolver;
use weir_values::Template;

/// Copies the stored properties of the first file to the second. Blocks.
pub type CarryProperties = fn(&std::path::Path, &std::path::Path) -> std::io::Result<()>;

/// Settings of a location.
#[derive(Debug, Clone)]
pub struct Conf {
    /// The content handler, if a directive such as `proxy_pass` sets one.
    pub content: Option<Content>,
    /// Whether this block itself names the content handler.
    pub names_content: bool,
    /// `root` or `alias`
    pub root: Root,
    /// `types`: file name extension to type.
    pub types: Arc<HashMap<Vec<u8>, Vec<u8>>>,
    /// `default_type`
    pub default_type: Vec<u8>,
    /// `error_page`
    pub error_pages: Vec<ErrorPage>,
    /// `try_files`
    pub try_files: Option<Arc<TryFiles>>,
    /// `internal`
    pub internal: bool,
    /// `limit_except`
    pub limit_except: Option<LimitExcept>,
    /// `satisfy any`
    pub satisfy_any: bool,
    /// `auth_delay`
    pub auth_delay: Duration,
    /// `error_log`
    pub error_log: Arc<Log>,
    /// `log_not_found`
    pub log_not_found: bool,
    /// `log_subrequest`
    pub log_subrequest: bool,
    /// `post_action`: a URI or a named location. Empty: none.
    pub post_action: Vec<u8>,
    /// Copies the properties of a file that is replaced, if clients may set properties.
    pub carry_properties: Option<CarryProperties>,
    /// `recursive_error_pages`
    pub recursive_error_pages: bool,
    /// `msie_padding`
    pub msie_padding: bool,
    /// `msie_refresh`
    pub msie_refresh: bool,
    /// `chunked_transfer_encoding`
    pub chunked: bool,
    /// `etag`
    pub etag: bool,
    /// `if_modified_since`
    pub if_modified_since: ModifiedSince,
    /// `max_ranges`; `None` by default.
    pub max_ranges: Option<u64>,
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
    /// `sendfile`
    pub sendfile: bool,
    /// `sendfile_max_chunk`. 0: the engine's own limit.
    pub sendfile_max_chunk: u64,
    /// `tcp_nodelay`
    pub tcp_nodelay: bool,
    /// `aio`
    pub aio: Aio,
    /// `open_file_cache` and the directives that tune it.
    pub open_files: OpenFiles,
    /// `disable_symlinks`
    pub symlinks: Symlinks,
    /// `keepalive_timeout`, first value.
    pub keepalive_timeout: Duration,
    /// `keepalive_timeout`, second value, in seconds.
    pub keepalive_header: Option<u64>,
    /// `keepalive_min_timeout`
    pub keepalive_min_timeout: Duration,
    /// `keepalive_requests`
    pub keepalive_requests: u64,
    /// `keepalive_time`
    pub keepalive_time: Duration,
    /// `keepalive_disable`
    pub keepalive_disable: NoKeepalive,
    /// `send_timeout`
    pub send_timeout: Duration,
    /// `reset_timedout_connection`
    pub reset_timedout_connection: bool,
    /// `client_body_timeout`
    pub client_body_timeout: Duration,
    /// `client_max_body_size`, 0: no limit.
    pub client_max_body_size: u64,
    /// `client_body_buffer_size`
    pub client_body_buffer_size: u64,
    /// `client_body_in_file_only`
    pub client_body_in_file_only: BodyInFile,
    /// `client_body_in_single_buffer`
    pub client_body_in_single_buffer: bool,
    /// `client_body_temp_path`
    pub client_body_temp_path: Arc<TempPath>,
    /// `subrequest_output_buffer_size`
    pub subrequest_output_buffer_size: u64,
    /// `lingering_close`
    pub lingering_close: Linger,
    /// `lingering_time`
    pub lingering_time: Duration,
    /// `lingering_timeout`
    pub lingering_timeout: Duration,
    /// `limit_rate`, in bytes per second.
    pub limit_rate: Option<Template>,
    /// `limit_rate_after`
    pub limit_rate_after: Option<Template>,
    /// `resolver`
    pub resolver: Option<Arc<Resolver>>,
    /// `resolver_timeout`
    pub resolver_timeout: Duration,
    /// `gzip_vary`
    pub gzip_vary: bool,
    /// `http2` and the directives that tune it.
    pub http2: Http2,
    /// `http3` and the directives that tune it.
    pub http3: Http3,
    /// `status_zone`
    pub status_zones: StatusZones,
    /// `blocked_threshold`: a handler that blocks the loop for longer is logged.
    pub blocked_threshold: Duration,
    /// `early_hints`: an upstream's 103 is passed on if one of these is neither empty nor `0`.
    pub early_hints: Vec<Template>,
}

impl Conf {
    /// Called when a block of this kind begins inside. Drops the settings that it does not inherit.
    pub fn enter(&mut self, block: &Kind) {
        self.content.take_if(|content| !content.is_kept_in(block));
        (self.try_files, self.limit_except, self.root.set) = (None, None, false);
        self.names_content = false;
    }
}

/// The page of a status in an `error_page` line.
#[derive(Debug, Clone)]
pub struct ErrorPage {
    /// The status that the page is for.
    pub status: u16,
    /// The status that the client gets.
    pub tell: Tell,
    /// A URI, a named location or a URL.
    pub page: Template,
}

/// The status of a response with an error page.
#[derive(Debug, Clone, Copy)]
pub enum Tell {
    /// The original status.
    Same,
    /// `=CODE`: this status.
    This(u16),
    /// `=`: the status of the page's response.
    Page,
}

/// `try_files`: the candidates and the fallback.
#[derive(Debug, Clone)]
pub struct TryFiles {
    /// The candidates, in order.
    pub names: Vec<Candidate>,
    /// The last parameter.
    pub fallback: Fallback,
}

/// A path that `try_files` tests.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// The path below the root.
    pub name: Template,
    /// Whether it ends with a slash, so that a directory is expected.
    pub directory: bool,
}

/// The last parameter of `try_files`.
#[derive(Debug, Clone)]
pub enum Fallback {
    /// `=CODE`
    Status(u16),
    /// A URI or a named location.
    Path(Template),
}

/// `limit_except`
#[derive(Debug, Clone)]
pub struct LimitExcept {
    /// The listed methods, which keep the settings of the location.
    pub allowed: Vec<Method>,
    /// The settings for all other methods.
    pub location: LocationId,
}

/// Settings of HTTP/2.
#[derive(Debug, Clone)]
pub struct Http2 {
    /// `http2`
    pub enabled: bool,
    /// `http2_max_concurrent_streams`
    pub max_concurrent_streams: u64,
    /// `http2_body_preread_size`
    pub body_preread_size: u64,
    /// `http2_chunk_size`
    pub chunk_size: u64,
}

impl Default for Http2 {
    fn default() -> Self {
        Http2 {
            enabled: false,
            max_concurrent_streams: 128,
            body_preread_size: 64 * 1024,
            chunk_size: 8 * 1024,
        }
    }
}

/// Settings of HTTP/3 and of QUIC below it.
#[derive(Debug, Clone)]
pub struct Http3 {
    /// `http3`
    pub enabled: bool,
    /// `http3_hq`
    pub hq: bool,
    /// `http3_max_concurrent_streams`
    pub max_concurrent_streams: u64,
    /// `http3_stream_buffer_size`
    pub stream_buffer_size: u64,
    /// `quic_retry`
    pub retry: bool,
    /// `quic_gso`
    pub gso: bool,
    /// `quic_congestion`
    pub congestion: Congestion,
    /// `http3_alt_svc`
    pub alt_svc: bool,
    /// The value of `Alt-Svc`, if the server advertises HTTP/3.
    pub offer: Option<Vec<u8>>,
    /// `quic_host_key`
    pub host_key: Option<HostKey>,
    /// `quic_active_connection_id_limit`
    pub ids: u64,
}

impl Default for Http3 {
    fn default() -> Self {
        Http3 {
            enabled: true,
            hq: false,
            max_concurrent_streams: 128,
            stream_buffer_size: 64 * 1024,
            retry: false,
            gso: true,
            congestion: Congestion::Cubic,
            alt_svc: false,
            offer: None,
            host_key: None,
            ids: 2,
        }
    }
}

/// The `status_zone`s that count requests, by number within the site.
#[derive(Debug, Clone, Default)]
pub struct StatusZones {
    /// The zone of the server.
    pub server: Option<usize>,
    /// The zone of the location, which may be inherited.
    pub location: Option<usize>,
    /// `if=`: the first zone whose value is neither empty nor `0` replaces that of the location.
    pub instead: Vec<(Template, usize)>,
}

/// The root of a location.
#[derive(Debug, Clone, Default)]
pub struct Root {
    /// The directory. It is absolute unless it begins with a variable.
    pub value: Template,
    /// The part of the path that it replaces. It depends on the location with the directive.
    pub stands_for: StandsFor,
    /// Whether this block itself has the directive.
    pub set: bool,
}

impl Root {
    /// Whether this is `alias`.
    pub fn is_alias(&self) -> bool {
        self.stands_for != StandsFor::Nothing
    }
}

/// The part of a request's path that a [`Root`] replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StandsFor {
    /// `root`: nothing. The whole path is below the root.
    #[default]
    Nothing,
    /// `alias` in a prefix location: this many bytes of the path. The rest is below the root.
    Prefix(usize),
    /// `alias` in a regular expression location: the whole path.
    Match,
}

/// `client_body_in_file_only`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BodyInFile {
    /// Large bodies go to a file without a name.
    #[default]
    Off,
    /// Every body goes to a file that stays.
    On,
    /// Every body goes to a file that is removed with the request.
    Clean,
}

/// `keepalive_disable`: browsers whose connections are closed after a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoKeepalive {
    /// Old versions of MSIE, after a POST.
    pub msie6: bool,
    /// Safari and similar browsers on macOS.
    pub safari: bool,
}

/// The version that `Server` and error pages show.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// `server_tokens`
#[derive(Debug, Clone)]
pub struct Tokens(Vec<u8>);

impl Tokens {
    /// The name, with or without the version.
    pub fn new(version: bool) -> Tokens {
        Tokens(if version { format!("weir/{}", VERSION).into_bytes() } else { b"weir".to_vec() })
    }

    /// The text for `Server` and weir's own pages.
    pub fn signature(&self) -> &[u8] {
        &self.0
    }
}

impl Default for Conf {
    fn default() -> Self {
        Conf {
            content: None,
            names_content: false,
            root: Root::default(),
            types: Arc::new(default_types()),
            default_type: b"text/plain".to_vec(),
            error_pages: Vec::new(),
            try_files: None,
            internal: false,
            limit_except: None,
            satisfy_any: false,
            auth_delay: Duration::ZERO,
            error_log: Arc::new(Log::new(Vec::new())),
            log_not_found: true,
            log_subrequest: false,
            post_action: Vec::new(),
            carry_properties: None,
            recursive_error_pages: false,
            msie_padding: true,
            msie_refresh: false,
            chunked: true,
            etag: true,
            if_modified_since: ModifiedSince::Exact,
            max_ranges: None,
            server_tokens: Tokens::new(true),
            absolute_redirect: true,
            server_name_in_redirect: false,
            port_in_redirect: true,
            postpone_output: 1460,
            sendfile: false,
            sendfile_max_chunk: 2 << 20,
            aio: Aio::Default,
            tcp_nodelay: true,
            open_files: OpenFiles::default(),
            symlinks: Symlinks::default(),
            keepalive_timeout: Duration::from_secs(75),
            keepalive_header: None,
            keepalive_min_timeout: Duration::ZERO,
            keepalive_requests: 1000,
            keepalive_time: Duration::from_secs(3600),
            keepalive_disable: NoKeepalive { msie6: true, safari: false },
            send_timeout: Duration::from_secs(60),
            reset_timedout_connection: false,
            client_body_timeout: Duration::from_secs(60),
            client_max_body_size: 1024 * 1024,
            // As in nginx: two pages.
            client_body_buffer_size: 8 * 1024,
            client_body_in_file_only: BodyInFile::Off,
            client_body_in_single_buffer: false,
            client_body_temp_path: Arc::new(TempPath::default()),
            subrequest_output_buffer_size: 4096,
            lingering_close: Linger::On,
            lingering_time: Duration::from_secs(30),
            lingering_timeout: Duration::from_secs(5),
            limit_rate: None,
            limit_rate_after: None,
            resolver: None,
            resolver_timeout: Duration::from_secs(30),
            gzip_vary: false,
            http2: Http2::default(),
            http3: Http3::default(),
            status_zones: StatusZones::default(),
            blocked_threshold: weir_values::doing::THRESHOLD,
            early_hints: Vec::new(),
        }
    }
}

/// nginx's default for `types`.
fn default_types() -> HashMap<Vec<u8>, Vec<u8>> {
    [("html", "text/html"), ("gif", "image/gif"), ("jpg", "image/jpeg")]
        .map(|(extension, kind)| (extension.as_bytes().to_vec(), kind.as_bytes().to_vec()))
        .into()
}
