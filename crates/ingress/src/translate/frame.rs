//! The servers of hosts, around their locations.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use weir_conf::Directive;

use super::files::Certificates;
use super::hosts::{Host, Route};
use super::keys::redirect_code;
use super::lines::{line, when};
use super::owners::key_owner;
use super::rules::{Match, RouteKey, root};
use super::snippet::Place;
use super::sources::Source;
use super::work::{Servers, Work};
use super::{location, passthrough};
use crate::report::Severity;

/// What the servers of a host are made of, beside [`Base`](super::work::Base) and looked-up
/// objects.
#[derive(Debug, PartialEq)]
pub(super) struct HostInput {
    pub(super) host: Box<Host>,
    /// The file of the certificate for hosts that have none.
    pub(super) default: Option<String>,
    /// The other one of `example.com` and `www.example.com`, if it is redirected here.
    pub(super) www: Option<String>,
}

/// What the server for all other names is made of.
#[derive(Debug, PartialEq)]
pub(super) struct DefaultInput {
    pub(super) host: Option<Box<Host>>,
    pub(super) default: Option<String>,
    /// Arguments of `listen` where a Gateway's server takes these names.
    pub(super) given: BTreeSet<String>,
}

/// The file of the certificate for hosts that have none.
pub(super) fn default_certificate(
    work: &mut Work<'_>,
    certificates: &mut Certificates,
) -> Option<String> {
    let named = work
        .settings
        .default_certificate
        .as_ref()
        .and_then(|(namespace, name)| certificates.by_name(work, namespace, name).certificate);
    named.map(|certificate| certificate.path).or_else(|| {
        let own = work.settings.own_certificate.clone()?;
        Some(work.file("own", own))
    })
}

/// Splits the hosts into those with a name and the server for all other names. `given` are the
/// arguments of `listen` where a Gateway's server takes the latter.
pub(super) fn sites(
    mut hosts: BTreeMap<Arc<str>, Box<Host>>,
    default: Option<&String>,
    given: &BTreeSet<String>,
) -> (Vec<HostInput>, DefaultInput) {
    let asks = |host: &Host| host.sources.iter().any(|source| source.options.from_to_www);
    let mut www = BTreeMap::new();
    if hosts.values().any(|host| asks(host)) {
        let names = hosts.values().flat_map(|host| host.names());
        let taken: HashSet<&str> = names.collect();
        for host in hosts.values().filter(|host| asks(host)) {
            let other = match host.name.strip_prefix("www.") {
                Some(bare) => bare.to_owned(),
                None => format!("www.{}", host.name),
            };
            if !taken.contains(other.as_str()) && !host.name.starts_with("*.") {
                www.insert(host.name.clone(), other);
            }
        }
    }
    let host = hosts.remove("");
    let rest = DefaultInput { host, default: default.cloned(), given: given.clone() };
    let site = |host: Box<Host>| {
        let www = www.remove(&host.name);
        HostInput { host, default: default.cloned(), www }
    };
    (hosts.into_values().map(site).collect(), rest)
}

/// The servers of a host.
pub(super) fn host_servers(work: &mut Work<'_>, site: &HostInput) -> Servers {
    let host = &site.host;
    let own = host.certificate.as_ref().map(|certificate| certificate.path.as_str());
    let names: Vec<&str> = host.acme_names.iter().map(String::as_str).collect();
    let identity = identity(work, own, &names, site.default.as_deref());
    let mut server = server(work, host, identity);
    work.owners.mark(&host.owner.id, std::slice::from_mut(&mut server));
    let mut http = vec![server];
    http.extend(site.www.as_ref().map(|other| www(work, host, other, site.default.as_deref())));
    Servers { http, streams: work.passthrough_servers(host), ..Servers::default() }
}

/// The server for all other names.
pub(super) fn default_servers(work: &mut Work<'_>, rest: &DefaultInput) -> Servers {
    // `default_server` takes all names that no other server has.
    let mut list = listens(work, false, true);
    list.extend(listens(work, true, true));
    list.retain(|listen| {
        let Some(word) = listen.arg(0) else { return true };
        let name = match listen.arg(1).is_some_and(|word| word.is("quic")) {
            true => over_quic(&word.lossy()),
            false => word.lossy().into_owned(),
        };
        !rest.given.contains(&name)
    });
    if list.is_empty() {
        return Servers::default();
    }
    list.push(http2(work));
    list.push(line("server_name", ["_"]));
    let rejects = work.settings.flag("ssl-reject-handshake");
    match rest.default.as_ref().filter(|_| !rejects) {
        Some(certificate) => list.extend(certificate_lines(certificate)),
        None => list.push(line("ssl_reject_handshake", ["on"])),
    }
    list.extend(health(rest.host.as_deref()));
    let mut streams = Vec::new();
    match &rest.host {
        Some(host) => {
            list.extend(body(work, host, rest.default.is_some()));
            streams = work.passthrough_servers(host);
        }
        None => {
            let mut nothing = unknown(work);
            let logged = work.settings.defaults.get("enable-access-log-for-default-backend");
            if logged.is_none_or(|text| text.trim() != "true") {
                nothing.insert(0, line("access_log", ["off"]));
            }
            list.push(line("location", ["/"]).with_block(nothing));
        }
    }
    Servers { http: vec![line("server", []).with_block(list)], streams, ..Servers::default() }
}

/// How a set of arguments of `listen` names the one for QUIC.
pub(crate) fn over_quic(word: &str) -> String {
    format!("{word} quic")
}

/// The health check of load balancers, at names that no Ingress has. An Ingress for all hosts may
/// have the path itself.
fn health(host: Option<&Host>) -> Option<Directive> {
    let taken = host.is_some_and(|host| host.routes.keys().any(|(path, _)| **path == *HEALTH));
    (!taken).then(healthy)
}

/// The path of the health check.
pub(crate) const HEALTH: &str = "/healthz";

/// The location that answers the health check.
pub(crate) fn healthy() -> Directive {
    let inside = vec![line("access_log", ["off"]), line("return", ["200"])];
    line("location", ["=", HEALTH]).with_block(inside)
}

fn listens(work: &Work<'_>, tls: bool, default: bool) -> Vec<Directive> {
    let behind = passthrough::inner_socket(work.settings);
    let addresses: Vec<&str> = match tls {
        true if passthrough::is_on(work.base) => vec![&behind],
        true => work.settings.https.iter().map(String::as_str).collect(),
        false => work.settings.http.iter().map(String::as_str).collect(),
    };
    let one = |address: &&str| {
        let mut words = vec![*address];
        words.extend(tls.then_some("ssl"));
        words.extend(default.then_some("default_server"));
        words.extend(work.base.proxy_protocol.then_some("proxy_protocol"));
        line("listen", words)
    };
    let mut list: Vec<Directive> = addresses.iter().map(one).collect();
    if tls && work.base.http3 {
        let quic = |address: &String| {
            let words = [address.as_str(), "quic"].into_iter();
            line("listen", words.chain(default.then_some("default_server")))
        };
        list.extend(work.settings.https.iter().map(quic));
    }
    list
}

/// Headers of answers over TLS.
pub(super) fn of_tls(work: &Work<'_>) -> Vec<Directive> {
    let mut list =
        vec![line("add_header", ["Strict-Transport-Security", "$strict_transport", "always"])];
    let offer = || line("add_header", ["Alt-Svc", "$alt_svc", "always"]);
    list.extend(work.base.http3.then(offer));
    list
}

/// HTTP/2, also over plain TCP, which gRPC needs.
fn http2(work: &Work<'_>) -> Directive {
    let off = work.settings.defaults.get("use-http2").is_some_and(|text| text.trim() == "false");
    line("http2", [if off { "off" } else { "on" }])
}

fn certificate_lines(path: &str) -> Vec<Directive> {
    vec![line("ssl_certificate", [path]), line("ssl_certificate_key", [path])]
}

/// The certificate lines of a server: its own certificate, one that is requested by ACME, or the
/// default certificate.
fn identity(
    work: &Work<'_>,
    own: Option<&str>,
    asked: &[&str],
    default: Option<&str>,
) -> Option<Vec<Directive>> {
    if own.is_none() && !asked.is_empty() {
        return work.settings.acme_line(asked).map(|line| vec![line]);
    }
    own.or(default).map(certificate_lines)
}

/// A host as `server_name`. In Kubernetes `*.` is one label, in nginx any number.
fn server_name(name: &str) -> String {
    match name.strip_prefix("*.") {
        Some(rest) => format!("~^[^.]+\\.{}$", rest.replace('.', "\\.")),
        None => name.to_owned(),
    }
}

fn server(work: &mut Work<'_>, host: &Host, identity: Option<Vec<Directive>>) -> Directive {
    let mut list = listens(work, false, false);
    let tls = identity.is_some();
    if let Some(lines) = identity {
        list.extend(listens(work, true, false));
        list.extend(lines);
    }
    list.push(http2(work));
    let mut names = vec![server_name(&host.name)];
    names.extend(host.aliases.iter().map(|alias| server_name(alias)));
    list.push(line("server_name", names.iter().map(String::as_str)));
    list.extend(body(work, host, tls));
    line("server", []).with_block(list)
}

/// The redirect from the other of `example.com` and `www.example.com`.
fn www(work: &Work<'_>, host: &Host, other: &str, default: Option<&str>) -> Directive {
    let mut list = listens(work, false, false);
    let own = host.certificate.as_ref().filter(|c| c.covers(other)).map(|c| c.path.as_str());
    let asked = Some(other).filter(|_| host.certificate.is_none() && !host.acme_names.is_empty());
    if let Some(lines) = identity(work, own, asked.as_slice(), default) {
        list.extend(listens(work, true, false));
        list.extend(lines);
    }
    list.push(http2(work));
    list.push(line("server_name", [other]));
    list.push(line(
        "return",
        [redirect_code(work.settings), &format!("$scheme://{}$request_uri", host.name)],
    ));
    line("server", []).with_block(list)
}

/// The directives of a server behind its listen addresses and names.
fn body(work: &mut Work<'_>, host: &Host, tls: bool) -> Vec<Directive> {
    let mut list = work.base.server.clone();
    work.owners.mark(&key_owner("server-snippet"), &mut list);
    for source in &host.sources {
        let mut made = server_snippet(work, source);
        work.owners.mark(&source.id, &mut made);
        list.extend(made);
    }
    if tls {
        list.extend(of_tls(work));
    }
    for name in ["ssl_ciphers", "ssl_prefer_server_ciphers"] {
        let mut all = host.sources.iter().flat_map(|source| {
            source.options.tls.iter().map(move |(name, word)| (source, name, word))
        });
        if let Some((source, name, word)) = all.find(|(_, other, _)| tls && **other == name) {
            let mut made = [line(name, [word.as_str()])];
            work.owners.mark(&source.id, &mut made);
            list.extend(made);
        }
    }
    client_certificates(work, host, tls, &mut list);
    if let Some(root) = host.sources.iter().find_map(|source| source.options.app_root.as_ref()) {
        let to = format!("$scheme://$http_host{root}");
        list.push(when("$uri", "=", "/", vec![line("return", ["302", &to])]));
    }
    let mut all = host.routes.values();
    let patterns = all.any(|route| route.source.options.makes_pattern(&route.rule));
    let mut routes: Vec<(&RouteKey, &Route)> = host.routes.iter().collect();
    routes.sort_by(|(a, _), (b, _)| (b.0.len(), &b.0).cmp(&(a.0.len(), &a.0)));
    for ((path, kind), route) in routes {
        let words = match (patterns, kind) {
            (true, _) => {
                let pattern = format!("^{path}");
                if let Err(why) = crate::annotations::values::pattern(&pattern) {
                    work.say(
                        &route.source.id,
                        Severity::Error,
                        "InvalidPath",
                        path,
                        &format!("{why}; the path is left out"),
                    );
                    continue;
                }
                vec!["~*".to_owned(), pattern]
            }
            (false, Match::Exact) => vec!["=".to_owned(), path.to_string()],
            (false, Match::Bytes) => vec![path.to_string()],
        };
        let made = location::location(work, host, route, path, tls);
        let at = line("location", words.iter().map(String::as_str)).with_block(made.inside);
        let mut made = made.beside;
        made.push(at);
        work.owners.mark(&route.source.id, &mut made);
        list.extend(made);
    }
    if !host.routes.contains_key(&root()) {
        let nothing = unknown(work);
        list.push(line("location", ["/"]).with_block(nothing));
    }
    list
}

/// The directives of an Ingress's snippet for servers. Without them, the server could answer what
/// they keep from clients.
fn server_snippet(work: &mut Work<'_>, source: &Source) -> Vec<Directive> {
    let text = source.options.server_snippet.as_ref();
    let bytes = text.map_or(0, String::len).saturating_mul(source.rules.len());
    if bytes <= location::MOST_OF_INGRESS {
        return work.snippet(source, "server-snippet", text, Place::Server);
    }
    let why =
        format!("it stands in each of {} hosts, and would have {bytes} bytes", source.rules.len());
    vec![work.refuse(&source.id, "TooLarge", "server-snippet", &why)]
}

/// The directives for client certificates. A host asks for them in one way: the first Ingress that
/// names them decides.
fn client_certificates(work: &mut Work<'_>, host: &Host, tls: bool, list: &mut Vec<Directive>) {
    let found = host
        .sources
        .iter()
        .find_map(|source| Some((source, source.options.client_certificates.as_ref()?)));
    let Some((source, wanted)) = found else { return };
    let files = work
        .secret(&source.id, &wanted.secret)
        .and_then(|data| Ok((work.authorities(data)?, work.revocations(data)?)));
    let first = list.len();
    match files {
        Ok((authorities, revoked)) if tls => {
            list.push(line("ssl_client_certificate", [authorities.as_str()]));
            list.extend(revoked.map(|file| line("ssl_crl", [file.as_str()])));
            list.push(line("ssl_verify_client", [wanted.verify]));
            list.push(line("ssl_verify_depth", [wanted.depth.to_string().as_str()]));
            if let Some(page) = &wanted.error_page {
                list.push(line("error_page", ["495", "496", "=", page]));
            }
            if let Some(subject) = &wanted.subject {
                let refuse = vec![line("return", ["403", "client certificate unauthorized"])];
                list.push(when("$ssl_client_s_dn", "!~", subject, refuse));
            }
        }
        other => {
            let why =
                other.err().unwrap_or_else(|| "the host has no certificate of its own".to_owned());
            work.say(
                &source.id,
                Severity::Error,
                "NoClientCertificates",
                "auth-tls-secret",
                &format!("{why}: answers are 403"),
            );
            list.push(line("return", ["403"]));
        }
    }
    // The host may be another Ingress's.
    work.owners.mark(&source.id, list.get_mut(first..).unwrap_or_default());
}

/// The answer for paths without a rule: the default backend, or 404.
fn unknown(work: &mut Work<'_>) -> Vec<Directive> {
    let id = crate::report::ObjectId {
        kind: "Settings",
        namespace: String::new(),
        name: "default-backend".to_owned(),
    };
    let backend = work.settings.default_backend.clone();
    let group = backend.and_then(|(namespace, service)| {
        work.group(&id, None, &namespace, &service, &String::new())
    });
    match group {
        Some(group) => vec![line("proxy_pass", [format!("http://{group}").as_str()])],
        None => vec![line("return", ["404"])],
    }
}
