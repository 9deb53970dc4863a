//! Reads a `stream` block into a [`Site`].

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_conf::{Directive as Line, Error, Spot};
use weir_engine::ConnectOptions;
use weir_log::{Level, Log};
use weir_ssl::ocsp::Stapling;
use weir_upstream::config::{
    Around, Bind, Drafts, GroupId, Host, UpstreamBlock, Upstreams, Url, methods, server,
};
use weir_upstream::tunnel;
use weir_values::access::Rules;
use weir_values::doing::THRESHOLD;
use weir_values::limit_conn::{LimitLogging, Limits};
use weir_values::listen::ListenLine;
use weir_values::log::{self, LogTarget};
use weir_values::names::ServerName;
use weir_values::status::StatusZone;
use weir_values::{Address, Cidr, Inputs, Reading, Template, UsedDirectives, VariableId};

use crate::directives::{self, Set};
use crate::health::{self, Match, StreamCheck};
use crate::session::Session;
use crate::site::{Server, Site, SiteParts};
use crate::tls;

/// Nothing binds a session to a server.
pub type Groups = Upstreams<Infallible>;

/// Settings of a server; a block inside begins with a clone of those around it.
#[derive(Debug, Clone)]
pub struct Conf {
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
    pub tls: tls::TlsConf,
    /// `set`, in order.
    pub sets: Vec<(VariableId, Template)>,
    /// What is done with sessions.
    pub content: SessionContent,
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
    pub upload_rate: Template,
    /// `proxy_download_rate`
    pub download_rate: Template,
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
            upload_rate: Template::EMPTY,
            download_rate: Template::EMPTY,
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

impl Conf {
    fn new(error_log: Arc<Log>) -> Conf {
        Conf {
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
            tls: tls::TlsConf::default(),
            sets: Vec::new(),
            content: SessionContent::None,
        }
    }
}

/// What the whole block shares while it is read.
pub struct StreamSetup<'a> {
    /// From outside.
    pub inputs: Inputs<'a>,
    /// All variables, defined and referred to.
    pub variables: weir_values::Variables<Session>,
    /// What was noticed that does not stop the start.
    pub warnings: Vec<Error>,
    /// Files that sessions are logged to.
    pub targets: Vec<LogTarget>,
    /// Groups of upstream servers.
    pub upstreams: Drafts<Infallible>,
    /// `match` blocks.
    pub matches: Vec<Arc<Match>>,
    checks: Vec<StreamCheck>,
    /// Certificates and keys, each read once.
    pem_files: weir_ssl::KeyFiles,
    /// Responses that are fetched to be sent along with certificates.
    staplings: Vec<Stapling>,
    servers: Vec<(Server, Vec<ListenLine>)>,
}

impl<'a> StreamSetup<'a> {
    /// What a directive adds to while it is read.
    pub fn reading(&mut self) -> Reading<'_, Session> {
        Reading { variables: &mut self.variables, warnings: &mut self.warnings }
    }

    /// The same for what is said of TLS.
    pub fn tls(&mut self) -> weir_ssl::SslReader<'_, 'a, Session> {
        weir_ssl::SslReader {
            inputs: self.inputs,
            variables: &mut self.variables,
            warnings: &mut self.warnings,
            files: &mut self.pem_files,
            staplings: &mut self.staplings,
        }
    }
}

/// One block while it is read.
pub struct StreamScope<'s, 'a> {
    /// What the whole block shares.
    pub setup: &'s mut StreamSetup<'a>,
    /// Its settings.
    pub conf: Conf,
    /// `server_name`
    pub names: Vec<ServerName>,
    /// `listen`
    pub listens: Vec<ListenLine>,
    /// `health_check`, until all of the server is known.
    pub checks: Vec<health::HealthCheckDirective>,
    used: UsedDirectives,
}

impl<'s, 'a> StreamScope<'s, 'a> {
    fn new(setup: &'s mut StreamSetup<'a>, conf: Conf) -> StreamScope<'s, 'a> {
        let (names, listens, checks) = (Vec::new(), Vec::new(), Vec::new());
        StreamScope { setup, conf, names, listens, checks, used: UsedDirectives::default() }
    }
}

impl StreamScope<'_, '_> {
    /// True the first time that this block uses the directive: the moment to drop an inherited list.
    pub fn first(&mut self, d: &Line) -> bool {
        self.used.first(d)
    }

    /// The same for several directives that make one list.
    pub fn first_of(&mut self, names: &str) -> bool {
        self.used.first_of(names.as_bytes())
    }

    /// For directives that may stand once in a block: nginx's `is duplicate`.
    pub fn once(&mut self, d: &Line) -> Result<(), Error> {
        self.used.once(d)
    }

    /// Reads with what logs add to.
    pub fn logging(
        &mut self,
        read: impl FnOnce(&mut log::Files<'_, Session>, &mut log::Conf) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let setup = &mut *self.setup;
        let reading = Reading { variables: &mut setup.variables, warnings: &mut setup.warnings };
        let (targets, prefix, logs) = (&mut setup.targets, setup.inputs.prefix, setup.inputs.logs);
        let mut files = log::Files { reading, targets, prefix, logs, ready: |_| None };
        read(&mut files, &mut self.conf.log)
    }

    fn read(&mut self, lines: &[Line]) -> Result<(), Error> {
        for d in lines {
            if let Some(Set::Line(set)) = directives::directive(&d.name.lossy()).map(|d| d.set) {
                set(self, d)?;
            }
        }
        let zones = self.setup.inputs.zones;
        self.conf.limits.finish(zones)
    }
}

/// Reads the block; also says what is odd but no reason to stop.
pub fn configure(block: &Line, inputs: Inputs<'_>) -> Result<(Site, Vec<Error>), Error> {
    let mut setup = StreamSetup {
        inputs,
        variables: weir_values::Variables::new(),
        warnings: Vec::new(),
        targets: Vec::new(),
        upstreams: Drafts::default(),
        matches: Vec::new(),
        checks: Vec::new(),
        pem_files: weir_ssl::KeyFiles::at(inputs.conf_prefix),
        staplings: Vec::new(),
        servers: Vec::new(),
    };
    let conf = Conf::new(inputs.error_log.clone());
    let mut main = StreamScope::new(&mut setup, conf);
    main.read(block.block())?;
    let conf = main.conf;
    for d in block.block() {
        if d.name.is("upstream") {
            upstream(&mut setup, d)?;
        } else if d.name.is("server") {
            one_server(&mut setup, d, conf.clone())?;
        }
    }
    setup.variables.check().map_err(Error::emerg)?;
    let around =
        Around { resolver: conf.resolver.clone(), resolver_timeout: conf.resolver_timeout };
    let StreamSetup {
        variables, mut warnings, targets, upstreams, staplings, servers, checks, ..
    } = setup;
    let upstreams = upstreams.finish(&around, inputs.zones, &mut warnings)?;
    health::finish(&checks, &upstreams)?;
    let (main_log, threshold) = (conf.error_log, conf.threshold);
    let parts = SiteParts {
        servers,
        variables,
        upstreams,
        checks,
        targets,
        staplings,
        main_log,
        threshold,
    };
    let site = Site::new(parts, &mut warnings)?;
    Ok((site, warnings))
}

fn one_server(setup: &mut StreamSetup<'_>, d: &Line, conf: Conf) -> Result<(), Error> {
    let mut scope = StreamScope::new(setup, conf);
    scope.read(d.block())?;
    tls::finish(&mut scope)?;
    for line in std::mem::take(&mut scope.checks) {
        let check = line.finish(&scope)?;
        scope.setup.checks.push(check);
    }
    let StreamScope { setup, conf, mut names, listens, .. } = scope;
    let Some(first) = listens.first() else {
        let text = "no \"listen\" is defined for server";
        return Err(Error::emerg(text).at(d.close).mark(d.name.pos));
    };
    let address = first.listen.address.clone();
    if names.is_empty() {
        names.push(ServerName::Exact(Vec::new()));
    }
    let at = Spot::new(d, &d.name);
    setup.servers.push((Server { conf, names, address, at }, listens));
    Ok(())
}

/// `upstream NAME { }`
fn upstream(setup: &mut StreamSetup<'_>, d: &Line) -> Result<(), Error> {
    let Some(name) = d.arg(0) else { return Ok(()) };
    if setup.upstreams.is_defined(&name.bytes) {
        return Err(d.error_at(name, format!("duplicate upstream \"{}\"", name.lossy())));
    }
    let mut block = UpstreamBlock::new(name.lossy().into_owned());
    for line in d.block() {
        let (zones, block) = (setup.inputs.zones, &mut block);
        match line.name.bytes.as_slice() {
            b"server" => server(block, &mut setup.warnings, line, 0)?,
            b"hash" => methods::hash(&mut setup.reading(), block, line)?,
            b"least_conn" => methods::least_conn(block, &mut setup.warnings, line)?,
            b"least_time" => {
                methods::least_time(block, &mut setup.warnings, line, methods::OF_SESSIONS)?;
            }
            b"random" => {
                methods::random(block, &mut setup.warnings, line, methods::OF_SESSIONS)?;
            }
            b"zone" => methods::zone(block, zones, line)?,
            b"resolver" => {
                block.resolver = Some(Arc::new(weir_resolver::ResolverConf::read(line)?))
            }
            b"resolver_timeout" => block.resolver_timeout = Some(line.duration()?),
            _ => return Err(line.problem("is not built into weir's \"stream\" yet")),
        }
    }
    if block.peers.is_empty() && block.named.is_empty() {
        return Err(Error::emerg("no servers are inside upstream").at(d.close).mark(name.pos));
    }
    setup.upstreams.define(d, name, block)
}

/// `server_name NAME ...`
pub fn server_name(s: &mut StreamScope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.names.append(&mut weir_values::names::server_names(&mut s.setup.reading(), d)?);
    Ok(())
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

/// `pass ADDRESS`
pub fn pass(s: &mut StreamScope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    let Some(word) = d.arg(0) else { return Ok(()) };
    let to = s.setup.reading().template(d, word)?;
    s.conf.content = match to.constant() {
        None => SessionContent::PassTo(to),
        Some(text) => match listener(text) {
            Ok(address) => SessionContent::Pass(address),
            Err(why @ ("no addresses" | "no port")) => return Err(d.problem(&format!("has {why}"))),
            Err(why) => {
                let text = format!("{why} in \"{}\" of the \"pass\" directive", word.lossy());
                return Err(d.error_at(word, text));
            }
        },
    };
    Ok(())
}
