//! The servers of `stream`: TLS by server name, TCP and UDP.

use weir_conf::Directive;

use super::backends::{Backend, Block, Use};
use super::grants::{Referrer, Refused};
use super::listeners::{Listener, Protocol};
use super::policies::Policies;
use super::ports::{Name, Port};
use super::routes::{Route, Spec};
use super::servers::{inner_socket, socket_of};
use crate::report::ObjectId;
use crate::translate::{Work, digest, line};

/// The backends of a TLSRoute, TCPRoute or UDPRoute.
pub(super) struct Pass {
    pub(super) route: usize,
    shares: Vec<(u32, Result<Backend, Refused>)>,
}

/// Reads the rules of such a route.
pub(super) fn read(
    work: &Work<'_>,
    policies: &mut Policies,
    gateways: &[ObjectId],
    (at, route): (usize, &mut Route<'_>),
) -> Option<Pass> {
    let Spec::Stream(spec) = route.spec else { return None };
    let from = Referrer { kind: route.id.kind, namespace: &route.id.namespace };
    let backends = spec.rules.first().map(|rule| rule.backend_refs.as_slice()).unwrap_or_default();
    let found: Vec<_> = backends
        .iter()
        .map(|one| (one.weight.unwrap_or(1), work.backend(policies, gateways, from, &one.target())))
        .collect();
    if spec.rules.len() > 1 {
        route.faults.dropped.push("only the first rule is served".to_owned());
    }
    let refused = found.iter().find_map(|(_, backend)| backend.as_ref().err());
    route.faults.unresolved = refused.cloned();
    Some(Pass { route: at, shares: found })
}

/// The servers of `stream` for a port.
pub(super) fn servers(
    work: &mut Work<'_>,
    listeners: &[Listener<'_>],
    passes: &[Pass],
    port: &Port,
) -> Vec<Directive> {
    let speaks = |wanted: &[Protocol]| port.speaks(listeners, wanted);
    let udp = if port.udp { &["udp"][..] } else { &[] };
    if speaks(&[Protocol::Tcp, Protocol::Udp]) {
        let Some(name) = port.names.get("") else { return Vec::new() };
        let Some(inside) = pass_lines(work, passes, name, false) else { return Vec::new() };
        let mut list = listens(&port.listens(), udp);
        list.extend(inside);
        return vec![line("server", []).with_block(list)];
    }
    let (ends, through) = (speaks(&[Protocol::Tls]), speaks(&[Protocol::Passthrough]));
    let https = speaks(&[Protocol::Https]);
    match (ends, through || https) {
        (false, false) => Vec::new(),
        (false, true) if !through => Vec::new(),
        (true, false) => terminated(work, listeners, passes, port, &port.listens()),
        (_, true) => {
            // The server name in the first bytes decides which server terminates TLS.
            let mut list = preread_servers(work, listeners, passes, port);
            if ends {
                let word = inner_socket(work, port, "tls");
                list.extend(terminated(work, listeners, passes, port, &[word]));
            }
            list
        }
    }
}

fn listens(words: &[String], extra: &[&str]) -> Vec<Directive> {
    let one =
        |word: &String| line("listen", std::iter::once(word.as_str()).chain(extra.iter().copied()));
    words.iter().map(one).collect()
}

fn server_name(host: &str) -> Directive {
    line("server_name", [if host.is_empty() { "_" } else { host }])
}

/// Servers that terminate TLS, one for each name.
fn terminated(
    work: &mut Work<'_>,
    listeners: &[Listener<'_>],
    passes: &[Pass],
    port: &Port,
    words: &[String],
) -> Vec<Directive> {
    let own = |name: &&Name| listeners[name.listener].protocol == Some(Protocol::Tls);
    let mut list = Vec::new();
    let mut any = false;
    for (host, name) in port.names.iter().filter(|(_, name)| own(name)) {
        any |= host.is_empty();
        let extra: &[&str] = if host.is_empty() { &["ssl", "default_server"] } else { &["ssl"] };
        let mut inside = listens(words, extra);
        inside.push(server_name(host));
        let listener = &listeners[name.listener];
        for file in &listener.certificates {
            inside.push(line("ssl_certificate", [file.as_str()]));
            inside.push(line("ssl_certificate_key", [file.as_str()]));
        }
        if let Some(clients) = &listener.clients {
            inside.extend(clients.lines());
        }
        inside.extend(pass_lines(work, passes, name, true).unwrap_or_else(|| closed(work)));
        list.push(line("server", []).with_block(inside));
    }
    if !any {
        let mut inside = listens(words, &["ssl", "default_server"]);
        inside.push(line("ssl_reject_handshake", ["on"]));
        inside.extend(closed(work));
        list.push(line("server", []).with_block(inside));
    }
    list
}

/// Servers that read the server name of a handshake and pass the connection on.
fn preread_servers(
    work: &mut Work<'_>,
    listeners: &[Listener<'_>],
    passes: &[Pass],
    port: &Port,
) -> Vec<Directive> {
    let mut list = Vec::new();
    let mut any = false;
    for (host, name) in &port.names {
        any |= host.is_empty();
        let extra: &[&str] = if host.is_empty() { &["default_server"] } else { &[] };
        let mut inside = listens(&port.listens(), extra);
        inside.push(server_name(host));
        inside.push(line("ssl_preread", ["on"]));
        match listeners[name.listener].protocol {
            Some(Protocol::Https) => {
                inside.push(line("pass", [inner_socket(work, port, "https").as_str()]))
            }
            Some(Protocol::Tls) => {
                inside.push(line("pass", [inner_socket(work, port, "tls").as_str()]))
            }
            _ => {
                inside.extend(pass_lines(work, passes, name, false).unwrap_or_else(|| closed(work)))
            }
        }
        list.push(line("server", []).with_block(inside));
    }
    if !any {
        let mut inside = listens(&port.listens(), &["default_server"]);
        inside.push(line("ssl_preread", ["on"]));
        inside.extend(closed(work));
        list.push(line("server", []).with_block(inside));
    }
    list
}

/// The group without an available server, which closes connections at once.
const CLOSED: &str = "stream__closed";

fn closed(work: &mut Work<'_>) -> Vec<Directive> {
    let block = vec![line("server", ["127.0.0.1:9", "down"])];
    work.streams
        .insert(format!("upstream {CLOSED}"), vec![line("upstream", [CLOSED]).with_block(block)]);
    vec![line("proxy_pass", [CLOSED])]
}

/// A backend of a route, with its part of the connections.
struct Share {
    weight: u32,
    /// `None`: the backend has no server.
    group: Option<String>,
    /// The directives of TLS to its servers.
    tls: Vec<Directive>,
}

impl Share {
    fn of(
        work: &mut Work<'_>,
        weight: u32,
        backend: &Result<Backend, Refused>,
        ends: bool,
    ) -> Share {
        let none = Share { weight, group: None, tls: Vec::new() };
        let Ok(backend) = backend else { return none };
        let tls = match (&backend.tls, ends) {
            (Some(None), true) => return none,
            (Some(Some(tls)), true) => {
                std::iter::once(line("proxy_ssl", ["on"])).chain(tls.lines("proxy_ssl_")).collect()
            }
            _ => Vec::new(),
        };
        let group = work.group_of(backend, Block::Stream, ("", Vec::new()), Use::default());
        Share { weight, group, tls }
    }

    /// The directives of a server that has only this backend.
    fn lines(&self, work: &mut Work<'_>) -> Vec<Directive> {
        let Some(group) = &self.group else { return closed(work) };
        let mut list = self.tls.clone();
        list.push(line("proxy_pass", [group.as_str()]));
        list
    }

    /// Makes a server that has only this backend, and returns its socket.
    fn server(&self, work: &mut Work<'_>) -> String {
        let inside = self.lines(work);
        let words = inside.iter().flat_map(|line| std::iter::once(&line.name).chain(&line.args));
        let words: Vec<_> = words.map(|word| word.lossy()).collect();
        let socket = socket_of(work, "share", &words.join("\n"));
        let mut list = listens(std::slice::from_ref(&socket), &[]);
        list.extend(inside);
        let server = line("server", []).with_block(list);
        work.streams.insert(format!("server {socket}"), vec![server]);
        socket
    }
}

/// The directives that pass the connections of a name on. The most specific hostname's route gets
/// them, and of several the oldest.
fn pass_lines(
    work: &mut Work<'_>,
    passes: &[Pass],
    name: &Name,
    ends: bool,
) -> Option<Vec<Directive>> {
    let ranks = name.ranks();
    let own = passes.iter().filter(|pass| ranks.contains_key(&pass.route));
    let pass = own.min_by_key(|pass| ranks.get(&pass.route))?;
    let mut shares = Vec::new();
    for (weight, backend) in pass.shares.iter().filter(|(weight, _)| *weight > 0) {
        shares.push(Share::of(work, *weight, backend, ends));
    }
    Some(match shares.as_slice() {
        [] => closed(work),
        [share] => share.lines(work),
        _ => shared_lines(work, &shares),
    })
}

/// The directives for several backends. `proxy_ssl_...` are settings of a server, so backends that
/// differ in them get a server each.
fn shared_lines(work: &mut Work<'_>, shares: &[Share]) -> Vec<Directive> {
    let mut all = shares.iter().filter(|share| share.group.is_some()).map(|share| &share.tls);
    let tls = all.next().cloned().unwrap_or_default();
    if !all.all(|other| *other == tls) {
        let sockets: Vec<(u32, String)> =
            shares.iter().map(|share| (share.weight, share.server(work))).collect();
        return vec![line("pass", [split(work, &sockets).as_str()])];
    }
    if shares.iter().any(|share| share.group.is_none()) {
        closed(work);
    }
    let group = |share: &Share| share.group.clone().unwrap_or_else(|| CLOSED.to_owned());
    let groups: Vec<(u32, String)> =
        shares.iter().map(|share| (share.weight, group(share))).collect();
    let mut list = tls;
    list.push(line("proxy_pass", [split(work, &groups).as_str()]));
    list
}

/// A variable that chooses a group or socket for each connection, by the weights.
fn split(work: &mut Work<'_>, shares: &[(u32, String)]) -> String {
    let text: Vec<String> =
        shares.iter().map(|(weight, group)| format!("{weight} {group}")).collect();
    let name = format!("$split_{}", digest(text.join("\n").as_bytes()));
    let total: u64 = shares.iter().map(|(weight, _)| u64::from(*weight)).sum();
    let mut rows = Vec::new();
    if let Some(((_, last), rest)) = shares.split_last() {
        for (weight, group) in rest {
            let part = u64::from(*weight) * 10_000 / total.max(1);
            if part > 0 {
                rows.push(line(&format!("{}.{:02}%", part / 100, part % 100), [group.as_str()]));
            }
        }
        rows.push(line("*", [last.as_str()]));
    }
    let key = "$remote_addr $remote_port $connection $msec";
    let block = line("split_clients", [key, &name]).with_block(rows);
    work.streams.insert(format!("split {name}"), vec![block]);
    name
}
