//! Reads a `stream` block into a [`Site`].

use std::sync::Arc;

use weir_conf::{Directive as Line, Error, Spot};
use weir_ssl::ocsp::Stapling;
use weir_upstream::config::{Drafts, InheritedSettings, UpstreamBlock, methods, server};
use weir_values::listen::ListenLine;
use weir_values::log::{self, LogTarget};
use weir_values::names::ServerName;
use weir_values::{Inputs, Reading, UsedDirectives};

use crate::directives::{self, Set};
use crate::health::{HealthCheckDirective, Match, StreamCheck, finish};
use crate::script_directives;
use crate::session::Session;
use crate::settings::{GroupScript, SessionContent, StreamConf, listener};
use crate::site::{Server, Site, SiteParts};
use crate::tls;

/// State of the whole `stream` block while it is read.
pub struct StreamSetup<'a> {
    /// What the server passes in: prefixes, logs, zones and so on.
    pub inputs: Inputs<'a>,
    /// All variables, defined and referred to.
    pub variables: weir_values::Variables<Session>,
    /// Problems that do not stop the start.
    pub warnings: Vec<Error>,
    /// Access log files.
    pub targets: Vec<LogTarget>,
    /// Groups of upstream servers.
    pub upstreams: Drafts<GroupScript>,
    /// `match` blocks.
    pub matches: Vec<Arc<Match>>,
    checks: Vec<StreamCheck>,
    /// Whether any server has `ssl_client_hello_by_lua`: such a script may set the TLS versions of
    /// any connection.
    pub has_hello_script: bool,
    /// Certificates and keys, each read once.
    pem_files: weir_ssl::KeyFiles,
    /// OCSP responses to fetch and staple.
    staplings: Vec<Stapling>,
    servers: Vec<(Server, Vec<ListenLine>)>,
}

impl<'a> StreamSetup<'a> {
    /// The variables and warnings that a directive adds to while it is read.
    pub fn reading(&mut self) -> Reading<'_, Session> {
        Reading { variables: &mut self.variables, warnings: &mut self.warnings }
    }

    /// The same for TLS directives.
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
    /// State of the whole `stream` block.
    pub setup: &'s mut StreamSetup<'a>,
    /// The block's settings.
    pub conf: StreamConf,
    /// `server_name`
    pub names: Vec<ServerName>,
    /// `listen`
    pub listens: Vec<ListenLine>,
    /// `health_check` lines, kept until the rest of the server block is read.
    pub checks: Vec<HealthCheckDirective>,
    used: UsedDirectives,
}

impl<'s, 'a> StreamScope<'s, 'a> {
    fn new(setup: &'s mut StreamSetup<'a>, conf: StreamConf) -> StreamScope<'s, 'a> {
        let (names, listens, checks) = (Vec::new(), Vec::new(), Vec::new());
        StreamScope { setup, conf, names, listens, checks, used: UsedDirectives::default() }
    }
}

impl StreamScope<'_, '_> {
    /// Whether this is the first use of the directive in this block. The inherited list is dropped
    /// then.
    pub fn first(&mut self, d: &Line) -> bool {
        self.used.first(d)
    }

    /// The same for several directives that add to one list.
    pub fn first_of(&mut self, names: &str) -> bool {
        self.used.first_of(names.as_bytes())
    }

    /// Refuses a second use of the directive in this block, with nginx's `is duplicate`.
    pub fn once(&mut self, d: &Line) -> Result<(), Error> {
        self.used.once(d)
    }

    /// Runs `read` with the block's log settings.
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
        self.conf.limits.finish::<Session>(zones)
    }
}

/// Reads the block. Adds the warnings, also those before an error.
pub fn configure(
    block: &Line,
    inputs: Inputs<'_>,
    warnings: &mut Vec<Error>,
) -> Result<Site, Error> {
    let mut setup = StreamSetup {
        inputs,
        variables: weir_values::Variables::new(),
        warnings: Vec::new(),
        targets: Vec::new(),
        upstreams: Drafts::default(),
        matches: Vec::new(),
        checks: Vec::new(),
        has_hello_script: script_directives::has_hello_script(block.block()),
        pem_files: weir_ssl::KeyFiles::at(inputs.conf_prefix),
        staplings: Vec::new(),
        servers: Vec::new(),
    };
    let conf = StreamConf::new(inputs.error_log.clone());
    let read = read_block(&mut setup, block, conf);
    warnings.append(&mut setup.warnings);
    let conf = read?;
    setup.variables.check()?;
    let around = InheritedSettings {
        resolver: conf.resolver.clone(),
        resolver_timeout: conf.resolver_timeout,
    };
    let StreamSetup {
        variables, targets, upstreams, staplings, pem_files, servers, checks, ..
    } = setup;
    let upstreams = upstreams.finish(&around, inputs.zones, warnings)?;
    finish(&checks, &upstreams)?;
    let (main_log, threshold) = (conf.error_log, conf.threshold);
    let parts = SiteParts {
        servers,
        variables,
        upstreams,
        checks,
        targets,
        staplings,
        certificates: pem_files.certificates,
        main_log,
        threshold,
    };
    Site::new(parts, warnings)
}

/// Reads all lines. Returns the settings of the block.
fn read_block(
    setup: &mut StreamSetup<'_>,
    block: &Line,
    conf: StreamConf,
) -> Result<StreamConf, Error> {
    let mut main = StreamScope::new(setup, conf);
    main.read(block.block())?;
    let StreamScope { setup, conf, .. } = main;
    for d in block.block() {
        if d.name.is("upstream") {
            upstream(setup, d)?;
        } else if d.name.is("server") {
            one_server(setup, d, conf.clone())?;
        }
    }
    Ok(conf)
}

fn one_server(setup: &mut StreamSetup<'_>, d: &Line, conf: StreamConf) -> Result<(), Error> {
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
        return Err(d.error(text));
    };
    let address = first.listen.address.clone();
    if names.is_empty() {
        names.push(ServerName::Exact(Vec::new()));
    }
    let (at, number) = (Spot::new(d, &d.name), setup.servers.len());
    setup.servers.push((Server { number, conf, names, address, at }, listens));
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
            b"servers_file" => {
                methods::servers_file(block, setup.inputs.prefix, 0, line)?;
            }
            b"balancer_by_lua_block" | b"balancer_by_lua_file" => {
                script_directives::balancer(block, &mut setup.warnings, line)?;
            }
            b"resolver" => {
                block.resolver = Some(Arc::new(weir_resolver::ResolverConf::read(line)?))
            }
            b"resolver_timeout" => block.resolver_timeout = Some(line.duration()?),
            _ => return Err(line.problem("is not built into weir's \"stream\" yet")),
        }
    }
    if !block.has_servers() {
        return Err(Error::emerg("no servers are inside upstream").at(d.close).mark(name.pos));
    }
    setup.upstreams.define(d, name, block, None)
}

/// `server_name NAME ...`
pub fn server_name(s: &mut StreamScope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.names.append(&mut weir_values::names::server_names(&mut s.setup.reading(), d)?);
    Ok(())
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
