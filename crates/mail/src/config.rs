//! Reads a `mail` block into a [`Site`].

use weir_conf::{Directive as Line, Error};
use weir_ssl::KeyFiles;
use weir_ssl::ocsp::{LookUp, Stapling};
use weir_ssl::server::{self, Spoken};
use weir_upstream::config::{Drafts, InheritedSettings, Url};
use weir_values::listen::{self, ListenLine};
use weir_values::{Inputs, UsedDirectives, Variables};

use crate::directives;
use crate::protocol::Protocol;
use crate::session::Session;
use crate::settings::{AuthServer, MailConf, StartTls};
use crate::site::{Server, Site, SiteParts};
use crate::{imap, pop3, smtp};

/// The default port of `auth_http`.
const HTTP: u16 = 80;

/// State of the whole `mail` block while it is read.
pub struct MailSetup<'a> {
    /// What the server passes in: prefixes, logs, zones and so on.
    pub inputs: Inputs<'a>,
    /// All variables, defined and referred to.
    pub variables: Variables<Session>,
    /// Problems that do not stop the start.
    pub warnings: Vec<Error>,
    /// The HTTP servers of `auth_http`.
    pub upstreams: Drafts<()>,
    files: KeyFiles,
    staplings: Vec<Stapling>,
    servers: Vec<(Server, Vec<ListenLine>)>,
}

impl<'a> MailSetup<'a> {
    /// The state that TLS directives read and add to.
    pub fn tls(&mut self) -> weir_ssl::SslReader<'_, 'a, Session> {
        weir_ssl::SslReader {
            inputs: self.inputs,
            variables: &mut self.variables,
            warnings: &mut self.warnings,
            files: &mut self.files,
            staplings: &mut self.staplings,
        }
    }
}

/// One block while it is read.
pub struct MailScope<'s, 'a> {
    /// State of the whole `mail` block.
    pub setup: &'s mut MailSetup<'a>,
    /// The block's settings.
    pub conf: MailConf,
    /// `listen`
    pub listens: Vec<ListenLine>,
    used: UsedDirectives,
}

impl<'s, 'a> MailScope<'s, 'a> {
    fn new(setup: &'s mut MailSetup<'a>, conf: MailConf) -> MailScope<'s, 'a> {
        MailScope { setup, conf, listens: Vec::new(), used: UsedDirectives::default() }
    }
}

impl MailScope<'_, '_> {
    /// Whether this is the first use of the directive in this block. The inherited list is dropped
    /// then.
    pub fn first(&mut self, d: &Line) -> bool {
        self.used.first(d)
    }

    /// Refuses a second use of the directive in this block, with nginx's `is duplicate`.
    pub fn once(&mut self, d: &Line) -> Result<(), Error> {
        self.used.once(d)
    }

    fn read(&mut self, lines: &[Line]) -> Result<(), Error> {
        for d in lines {
            if let Some(set) = directives::directive(&d.name.lossy()).and_then(|d| d.set) {
                set(self, d)?;
            }
        }
        Ok(())
    }
}

/// Reads the block. Adds the warnings, also those before an error.
pub fn configure(
    block: &Line,
    inputs: Inputs<'_>,
    warnings: &mut Vec<Error>,
) -> Result<Site, Error> {
    let mut setup = MailSetup {
        inputs,
        variables: Variables::new(),
        warnings: Vec::new(),
        upstreams: Drafts::default(),
        files: KeyFiles::at(inputs.conf_prefix),
        staplings: Vec::new(),
        servers: Vec::new(),
    };
    let conf = MailConf::new(inputs.error_log.clone());
    let read = read_block(&mut setup, block, conf);
    warnings.append(&mut setup.warnings);
    let conf = read?;
    setup.variables.check()?;
    let around = InheritedSettings {
        resolver: conf.resolver.clone(),
        resolver_timeout: conf.resolver_timeout,
    };
    let MailSetup { variables, upstreams, files, servers, .. } = setup;
    let upstreams = upstreams.finish(&around, inputs.zones, warnings)?;
    let (certificates, main_log) = (files.certificates, conf.error_log);
    Site::new(SiteParts { servers, variables, upstreams, certificates, main_log })
}

/// Reads all lines. Returns the settings of the block.
fn read_block(setup: &mut MailSetup<'_>, block: &Line, conf: MailConf) -> Result<MailConf, Error> {
    let mut main = MailScope::new(setup, conf);
    main.read(block.block())?;
    let MailScope { setup, conf, .. } = main;
    for d in block.block().iter().filter(|d| d.name.is("server")) {
        one_server(setup, d, conf.clone())?;
    }
    Ok(conf)
}

fn one_server(setup: &mut MailSetup<'_>, d: &Line, conf: MailConf) -> Result<(), Error> {
    let mut scope = MailScope::new(setup, conf);
    scope.read(d.block())?;
    let Some(first) = scope.listens.first() else {
        return Err(d.error("no \"listen\" is defined for server"));
    };
    let address = first.listen.address.clone();
    let by_port = || {
        let ports = scope.listens.iter().filter_map(|line| line.listen.address.port());
        let of = |port| Protocol::ALL.into_iter().find(|protocol| protocol.ports().contains(&port));
        ports.into_iter().find_map(of)
    };
    let Some(protocol) = scope.conf.protocol.or_else(by_port) else {
        return Err(d.error("unknown mail protocol for server"));
    };
    if scope.conf.server_name.is_empty() {
        scope.conf.server_name = rustix::system::uname().nodename().to_bytes().to_vec();
    }
    if scope.conf.auth.server.is_none() {
        return Err(d.error("no \"auth_http\" is defined for server"));
    }
    finish_tls(&mut scope, d, protocol)?;
    let MailScope { setup, conf, listens, .. } = scope;
    let texts = match protocol {
        Protocol::Pop3 => pop3::texts(&conf.pop3),
        Protocol::Imap => imap::texts(&conf.imap),
        Protocol::Smtp => smtp::texts(&conf.smtp, &conf.server_name),
    };
    setup.servers.push((Server { conf, protocol, texts, address }, listens));
    Ok(())
}

/// Builds the TLS settings of a server that uses TLS, which must have a certificate.
fn finish_tls(s: &mut MailScope<'_, '_>, d: &Line, protocol: Protocol) -> Result<(), Error> {
    let listens = s.listens.iter().find(|line| line.protocols.ssl);
    let (mode, at) = match listens {
        Some(line) => ("listen ... ssl", line.at),
        None if s.conf.starttls != StartTls::Off => ("starttls", weir_conf::Spot::new(d, &d.name)),
        None => return Ok(()),
    };
    if !s.conf.tls.has_certificates() {
        let text = format!("no \"ssl_certificate\" is defined for the \"{mode}\" directive");
        return Err(at.error(text));
    }
    let conf = &mut s.conf;
    conf.tls.forget_unused_authorities();
    let look_up = LookUp { resolver: conf.resolver.clone(), timeout: conf.resolver_timeout };
    let tcp = vec![protocol.name().as_bytes().to_vec()];
    let spoken = Spoken { tcp, ..Spoken::default() };
    conf.context = server::build(&conf.tls, &mut s.setup.tls(), look_up, spoken, b"MAIL")?;
    Ok(())
}

/// `listen ADDRESS [parameter]...`
pub fn listen(s: &mut MailScope<'_, '_>, d: &Line) -> Result<(), Error> {
    let known = |text: &str| {
        let name = text.split_once('=').map_or(text, |(name, _)| name);
        let plain = matches!(name, "bind" | "multipath" | "ssl" | "proxy_protocol");
        let valued = matches!(name, "backlog" | "rcvbuf" | "sndbuf" | "ipv6only" | "so_keepalive");
        plain || valued
    };
    if let Some(word) = d.args.iter().skip(1).find(|word| !known(&word.lossy())) {
        return Err(d.error_at(word, format!("invalid parameter \"{}\"", word.lossy())));
    }
    let lines = listen::parse(d, false, &mut s.setup.warnings)?;
    s.listens.extend(lines);
    Ok(())
}

/// `auth_http URL`
pub fn auth_http(s: &mut MailScope<'_, '_>, d: &Line) -> Result<(), Error> {
    let Some(word) = d.arg(0) else { return Ok(()) };
    let text = word.bytes.strip_prefix(b"http://").unwrap_or(&word.bytes);
    let wrong = |why: &str| {
        let shown = String::from_utf8_lossy(text);
        d.error_at(word, format!("{why} in auth_http \"{shown}\""))
    };
    let url = Url::parse(text, true).map_err(wrong)?;
    let is_unix = matches!(url.address, Some(weir_upstream::config::Host::Unix(_)));
    let host = if is_unix { b"localhost".to_vec() } else { url.host.clone() };
    // A request target begins with a slash, even if the URL has only a query after the host.
    let uri = match url.uri.first() {
        Some(b'/') => url.uri.clone(),
        _ => [b"/", url.uri.as_slice()].concat(),
    };
    let group = s.setup.upstreams.refer(d, word, url, HTTP)?;
    s.conf.auth.server = Some(AuthServer { group, host, uri });
    Ok(())
}
