//! The settings of sessions.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_engine::ConnectOptions;
use weir_log::{Level, Log};
use weir_ssl::client;
use weir_ssl::server::{self, ServerContext};
use weir_upstream::config::{Bind, GroupExtras, GroupId, Host, Upstreams, Url};
use weir_upstream::tunnel;
use weir_values::access::Rules;
use weir_values::doing::THRESHOLD;
use weir_values::limit_conn::{LimitLogging, Limits};
use weir_values::log;
use weir_values::status::StatusZone;
use weir_values::{Address, Cidr, Template, VariableId};

/// Groups of servers; nothing binds a session to one of them.
pub type Groups = Upstreams<GroupScript>;

/// What only a group of `stream` has.
#[derive(Debug, Default)]
pub struct GroupScript {
    /// `balancer_by_lua`: a script chooses the servers.
    pub chooses: bool,
}

impl GroupExtras for GroupScript {
    fn chooses(&self) -> bool {
        self.chooses
    }
}

/// Settings of a server; a block inside begins with a clone of those around it.
#[derive(Debug, Clone)]
pub struct StreamConf {
    /// `error_log`
    pub error_log: Arc<Log>,
    /// `resolver`
    pub resolver: Option<Arc<weir_resolver::ResolverConf>>,
    /// `resolver_timeout`
    pub resolver_timeout: Duration,
    /// `proxy_protocol_timeout`
    pub proxy_protocol_timeout: Duration,
    /// `preread_timeout`
    pub preread_timeout: Duration,
    /// `preread_buffer_size`
    pub preread_buffer: usize,
    /// `blocked_threshold`
    pub threshold: Duration,
    /// `tcp_nodelay`
    pub tcp_nodelay: bool,
    /// `ssl_preread`
    pub ssl_preread: bool,
    /// `set_real_ip_from`
    pub believed: Vec<Cidr>,
    /// `allow`, `deny`
    pub access: Rules,
    /// `limit_conn`
    pub limits: Limits,
    /// What those above a limit are told.
    pub refusal: LimitLogging,
    /// `access_log`
    pub log: log::Conf,
    /// `proxy_...`
    pub proxy: Proxy,
    /// `status_zone`
    pub status_zone: Option<Arc<StatusZone>>,
    /// `health_check_timeout`
    pub health_timeout: Duration,
    /// `ssl_...`, `proxy_ssl_...`
    pub tls: TlsConf,
    /// `set`, in order.
    pub sets: Vec<(VariableId, Template)>,
    /// Scripts of phases before and behind the content.
    pub scripts: PhaseScripts,
    /// What is done with sessions.
    pub content: SessionContent,
}

/// Which phases of a server's sessions have a script.
#[derive(Debug, Clone, Copy, Default)]
pub struct PhaseScripts {
    /// `ssl_client_hello_by_lua`
    pub hello: bool,
    /// `ssl_certificate_by_lua`
    pub certificate: bool,
    /// `preread_by_lua`
    pub preread: bool,
    /// `preread_by_lua_no_postpone`
    pub early: bool,
    /// `log_by_lua`
    pub log: bool,
}

/// What is done with a session.
#[derive(Debug, Clone)]
pub enum SessionContent {
    /// Nothing was said: sessions end with status 500.
    None,
    /// `return`
    Return(Template),
    /// `proxy_pass` to a group, or to an address of the configuration.
    Group(GroupId),
    /// `proxy_pass` with variables.
    Computed(Template),
    /// `pass` to a listener of this server.
    Pass(Address),
    /// `pass` with variables.
    PassTo(Template),
    /// `content_by_lua`
    Script,
}

impl SessionContent {
    /// Whether it is `proxy_pass`.
    pub fn leads(&self) -> bool {
        matches!(self, SessionContent::Group(_) | SessionContent::Computed(_))
    }
}

/// `proxy_...`
#[derive(Debug, Clone)]
pub struct Proxy {
    /// `proxy_connect_timeout`
    pub connect_timeout: Duration,
    /// `proxy_timeout`
    pub timeout: Duration,
    /// `proxy_buffer_size`
    pub buffer: usize,
    /// What reads grow to: no further, where the size is said.
    pub most: usize,
    /// `proxy_upload_rate`
    pub upload_rate: Option<Template>,
    /// `proxy_download_rate`
    pub download_rate: Option<Template>,
    /// `proxy_next_upstream`
    pub next: bool,
    /// `proxy_next_upstream_tries`
    pub tries: u32,
    /// `proxy_next_upstream_timeout`
    pub next_timeout: Duration,
    /// `proxy_protocol`: its version.
    pub proxy_protocol: Option<u8>,
    /// `proxy_half_close`
    pub half_close: bool,
    /// `proxy_requests`; 0: any number.
    pub requests: u64,
    /// `proxy_responses`, to each of them.
    pub responses: Option<u64>,
    /// `proxy_bind`
    pub bind: Option<Bind>,
    /// `proxy_socket_keepalive`
    pub keepalive: bool,
    /// `proxy_socket_rcvbuf`
    pub rcvbuf: Option<usize>,
    /// `proxy_socket_sndbuf`
    pub sndbuf: Option<usize>,
}

impl Default for Proxy {
    fn default() -> Self {
        Proxy {
            connect_timeout: Duration::from_secs(60),
            timeout: Duration::from_secs(600),
            buffer: tunnel::PIECE,
            most: tunnel::MOST,
            upload_rate: None,
            download_rate: None,
            next: true,
            tries: 0,
            next_timeout: Duration::ZERO,
            proxy_protocol: None,
            half_close: false,
            requests: 0,
            responses: None,
            bind: None,
            keepalive: false,
            rcvbuf: None,
            sndbuf: None,
        }
    }
}

impl Proxy {
    /// How a server is reached from this address until then.
    pub fn options(&self, from: Option<SocketAddr>, until: Instant) -> ConnectOptions {
        ConnectOptions {
            deadline: Some(until),
            bind: from.map(Into::into),
            transparent: self.bind.as_ref().is_some_and(|bind| bind.transparent),
            keepalive: self.keepalive,
            rcvbuf: self.rcvbuf,
            sndbuf: self.sndbuf,
            ..ConnectOptions::default()
        }
    }
}

impl StreamConf {
    pub(crate) fn new(error_log: Arc<Log>) -> StreamConf {
        StreamConf {
            error_log,
            resolver: None,
            resolver_timeout: Duration::from_secs(30),
            proxy_protocol_timeout: Duration::from_secs(30),
            preread_timeout: Duration::from_secs(30),
            preread_buffer: 16 * 1024,
            threshold: THRESHOLD,
            tcp_nodelay: true,
            ssl_preread: false,
            believed: Vec::new(),
            access: Rules::default(),
            limits: Limits::default(),
            refusal: LimitLogging { log_level: Level::Error, dry_run: false },
            log: log::Conf::default(),
            proxy: Proxy::default(),
            status_zone: None,
            health_timeout: Duration::from_secs(5),
            tls: TlsConf::default(),
            sets: Vec::new(),
            scripts: PhaseScripts::default(),
            content: SessionContent::None,
        }
    }
}

/// `ssl_...`, `proxy_ssl_...`
#[derive(Debug, Clone)]
pub struct TlsConf {
    pub(crate) server: server::Conf,
    /// What these come to.
    pub context: Option<Arc<ServerContext>>,
    pub(crate) handshake_timeout: Duration,
    pub(crate) alpn: Vec<Vec<u8>>,
    /// `proxy_ssl`
    pub to_servers: bool,
    pub(crate) client: client::Settings,
}

impl Default for TlsConf {
    fn default() -> Self {
        TlsConf {
            server: server::Conf::default(),
            context: None,
            handshake_timeout: Duration::from_secs(60),
            alpn: Vec::new(),
            to_servers: false,
            client: client::Settings::default(),
        }
    }
}

/// The address of `pass`, which is looked up nowhere. The error is nginx's text.
pub fn listener(text: &[u8]) -> Result<Address, &'static str> {
    let url = Url::parse(text, false)?;
    match (url.address, url.port) {
        (None, _) => Err("no addresses"),
        (Some(Host::Unix(path)), _) => Ok(Address::Unix(path)),
        (Some(Host::Ip(_)), None) => Err("no port"),
        (Some(Host::Ip(ip)), Some(port)) => Ok(Address::Inet((ip, port).into())),
    }
}
