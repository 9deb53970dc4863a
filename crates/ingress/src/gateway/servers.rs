//! The servers of `http` for the names of a port.

use std::collections::{BTreeMap, BTreeSet};

use weir_conf::Directive;

use super::entries;
use super::http3;
use super::listeners::{Listener, Protocol, Served};
use super::of_route;
use super::ports::{Name, Port};
use super::rules::{Rule, Site};
use crate::translate::{
    HEALTH, OfIngresses, Servers, Work, digest, healthy, line, over_quic, when,
};

/// The inputs of the servers.
pub(super) struct Plan<'s> {
    pub(super) gateways: &'s [Served<'s>],
    pub(super) listeners: &'s [Listener<'s>],
    /// In the order of their routes.
    pub(super) rules: &'s [Rule<'s>],
}

impl<'s> Plan<'s> {
    /// The rules of a route.
    fn rules_of(&self, route: usize) -> &'s [Rule<'s>] {
        of_route(self.rules, route, |rule| rule.route)
    }
}

/// The socket to which connections of a port are passed after the server name was read from their
/// first bytes.
pub(super) fn inner_socket(work: &Work<'_>, port: &Port, kind: &str) -> String {
    socket_of(work, kind, &port.listens().join(" "))
}

/// A socket of weir's own for a server, which `text` identifies among those of the same kind.
pub(super) fn socket_of(work: &Work<'_>, kind: &str, text: &str) -> String {
    let name = digest(text.as_bytes());
    format!("unix:{}", work.settings.state.join(format!("{kind}-{name}.sock")).display())
}

/// Makes all servers of a port.
pub(super) fn servers(
    work: &mut Work<'_>,
    plan: &Plan<'_>,
    port: &Port,
    ingresses: &OfIngresses,
    made: &mut Servers,
) {
    let is_http = |name: &Name| {
        matches!(plan.listeners[name.listener].protocol, Some(Protocol::Http | Protocol::Https))
    };
    let names: Vec<(&String, &Name)> =
        port.names.iter().filter(|(_, name)| is_http(name)).collect();
    let Some((_, first)) = names.first() else { return };
    let tls = plan.listeners[first.listener].protocol == Some(Protocol::Https);
    let mixed = port.speaks(plan.listeners, &[Protocol::Passthrough, Protocol::Tls]);
    let words = if mixed { vec![inner_socket(work, port, "https")] } else { port.listens() };
    // HTTP/3 is for all names of a port. A name without it would get the server of another name.
    let quic = names.iter().any(|(_, name)| plan.listeners[name.listener].http3);
    let all = names.iter().any(|(host, _)| host.is_empty());
    let is_shared = |word: &&String| ingresses.words.contains(*word);
    // At a port that Ingresses listen on, too, their default server takes unknown names, unless this Gateway has a listener for all
    // names and no Ingress is for all hosts.
    let is_for_others = |word: &&String| !is_shared(word) || (all && !ingresses.all_hosts);
    let others: Vec<&String> = words.iter().filter(is_for_others).collect();
    for word in others.iter().copied().filter(is_shared) {
        made.others.insert(word.clone());
        made.others.extend(quic.then(|| over_quic(word)));
    }
    let listen = |words: &[&String], default: bool| -> Vec<Directive> {
        let datagrams = |word: &&String| {
            let mut list = vec![word.as_str(), "quic"];
            list.extend(default.then_some("default_server"));
            line("listen", list)
        };
        let datagrams = words.iter().filter(|_| quic).map(datagrams);
        let one = |word: &&String| {
            let mut list = vec![word.as_str()];
            list.extend(tls.then_some("ssl"));
            list.extend(default.then_some("default_server"));
            line("listen", list)
        };
        words.iter().map(one).chain(datagrams).chain([line("http2", ["on"])]).collect()
    };
    let sni = tls.then(|| misdirected(work, plan, port)).flatten();
    if !all && !others.is_empty() {
        let mut server = listen(&others, true);
        server.push(line("server_name", ["_"]));
        server.push(match tls {
            true => line("ssl_reject_handshake", ["on"]),
            false => line("return", ["404"]),
        });
        made.http.push(line("server", []).with_block(server));
    }
    let every: Vec<&String> = words.iter().collect();
    for (hosts, name) in alike(names) {
        let all = hosts.contains(&"");
        let own = if all { &others } else { &every };
        if own.is_empty() {
            continue;
        }
        let mut server = listen(own, all);
        server.push(line("server_name", if all { vec!["_"] } else { hosts }));
        server.push(line("client_max_body_size", ["0"]));
        let listener = &plan.listeners[name.listener];
        if tls {
            secure(work, listener, &mut server);
        }
        if listener.http3 {
            server.push(line("more_set_headers", [http3::offer(listener).as_str()]));
        }
        if let Some(variable) = &sni {
            let own = name.listener.to_string();
            server.push(when(variable, "!=", &own, vec![line("return", ["421"])]));
        }
        let site = Site { served: &plan.gateways[listener.gateway], listener, tls };
        let locations = body(work, plan, name, &site);
        let is_health = |location: &Directive| location.arg(1).is_some_and(|path| path.is(HEALTH));
        if all && own.iter().any(is_shared) && !locations.iter().any(is_health) {
            server.push(healthy());
        }
        server.extend(locations);
        let mut server = line("server", []).with_block(server);
        work.mark(&listener.owner, std::slice::from_mut(&mut server));
        made.http.push(server);
    }
}

/// Names with the same listener and the same routes, which have one server. The name for all
/// others has a server of its own.
fn alike<'n>(names: Vec<(&'n String, &'n Name)>) -> Vec<(Vec<&'n str>, &'n Name)> {
    let mut list: Vec<(Vec<&str>, &Name)> = Vec::new();
    let mut known = BTreeMap::new();
    for (host, name) in names {
        let at = *known.entry((host.is_empty(), name.listener, name.ranks())).or_insert(list.len());
        match list.get_mut(at) {
            Some((hosts, _)) => hosts.push(host),
            None => list.push((vec![host], name)),
        }
    }
    list
}

fn secure(work: &Work<'_>, listener: &Listener<'_>, server: &mut Vec<Directive>) {
    if listener.requests_certificate {
        server.extend(work.settings.acme_line(&[&listener.hostname]));
    }
    for file in &listener.certificates {
        server.push(line("ssl_certificate", [file.as_str()]));
        server.push(line("ssl_certificate_key", [file.as_str()]));
    }
    if let Some(clients) = &listener.clients {
        server.extend(clients.lines());
        if !clients.optional {
            // Without a valid certificate the connection is closed. nginx would answer 400.
            server.push(line("error_page", ["495", "496", "@untrusted"]));
            let nothing = vec![line("return", ["444"])];
            server.push(line("location", ["@untrusted"]).with_block(nothing));
        }
    }
}

/// A variable with the listener of the server name in the handshake. A request for a name of
/// another listener is misdirected (421): that listener might not accept its client.
fn misdirected(work: &mut Work<'_>, plan: &Plan<'_>, port: &Port) -> Option<String> {
    // Only listeners that serve names here count. A name that an older Gateway serves is that
    // Gateway's, whatever hostnames other listeners have.
    let is_https = |name: &&Name| plan.listeners[name.listener].protocol == Some(Protocol::Https);
    let own: BTreeSet<usize> =
        port.names.values().filter(is_https).map(|name| name.listener).collect();
    if own.len() < 2 {
        return None;
    }
    let name = format!("$listener_{}", digest(port.listens().join(" ").as_bytes()));
    let mut rows = vec![line("hostnames", [])];
    for (host, one) in port.names.iter().filter(|(_, name)| is_https(name)) {
        // A backslash keeps a host such as `default` from being a special parameter of `map`.
        let key = match host.as_str() {
            "" => "default".to_owned(),
            host if host.starts_with('*') => host.to_owned(),
            host => format!("\\{host}"),
        };
        rows.push(line(&key, [one.listener.to_string().as_str()]));
    }
    let map = line("map", ["$ssl_server_name", &name]).with_block(rows);
    work.shared.insert(format!("map {name}"), vec![map]);
    Some(name)
}

/// The locations of a name.
fn body(work: &mut Work<'_>, plan: &Plan<'_>, name: &Name, site: &Site<'_>) -> Vec<Directive> {
    let ranks = name.ranks();
    let mut all: Vec<entries::Entry> = Vec::new();
    for (route, rank) in &ranks {
        let entries = plan.rules_of(*route).iter().flat_map(|rule| &rule.entries);
        all.extend(entries.map(|entry| entry.of_rank(*rank)));
    }
    entries::sort(&mut all);
    let target = |number: usize| plan.rules.get(number).map(Rule::targets).unwrap_or_default();
    let mut mark = |number: usize, directive: &mut Directive| {
        if let Some(rule) = plan.rules.get(number) {
            work.mark(&rule.id, std::slice::from_mut(directive));
        }
    };
    let mut list = entries::locations(&all, &target, "404", &mut mark);
    for rule in ranks.keys().flat_map(|route| plan.rules_of(*route)) {
        let mut locations = rule.locations(work, site);
        work.mark(&rule.id, &mut locations);
        list.extend(locations);
    }
    list
}
