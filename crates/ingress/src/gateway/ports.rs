//! The names of a port: the listener and the routes that serve each.

use std::collections::{BTreeMap, BTreeSet};

use super::listeners::{Listener, Protocol, Served};
use super::names;
use super::routes::{Attachment, Route, Shared};
use crate::report::Severity;
use crate::settings::Settings;
use crate::translate::Work;

/// A port of some addresses, with its listeners and names.
pub(super) struct Port {
    pub(super) addresses: Vec<String>,
    pub(super) number: u16,
    /// UDP in place of TCP.
    pub(super) udp: bool,
    /// Listeners, oldest Gateway first.
    pub(super) listeners: Vec<usize>,
    /// The names that are served, with their listeners and routes.
    pub(super) names: BTreeMap<String, Name>,
}

/// A name: its listener, and its routes with the hostname that each has in its spec, oldest first.
pub(super) struct Name {
    pub(super) listener: usize,
    routes: Vec<(usize, String)>,
}

impl Name {
    /// The ranks of the routes. A route with a more specific hostname has a lower one.
    pub(super) fn ranks(&self) -> BTreeMap<usize, usize> {
        let mut list: Vec<&(usize, String)> = self.routes.iter().collect();
        list.sort_by(|a, b| names::by_precision(&a.1, &b.1));
        let mut ranks = BTreeMap::new();
        let mut last: Option<(&str, usize)> = None;
        for (number, (route, asked)) in list.into_iter().enumerate() {
            let rank = last.filter(|(same, _)| same == asked).map_or(number, |(_, rank)| rank);
            last = Some((asked, rank));
            ranks.insert(*route, rank);
        }
        ranks
    }
}

impl Port {
    /// The arguments of `listen`.
    pub(super) fn listens(&self) -> Vec<String> {
        words(&self.addresses, self.number)
    }

    /// Whether a listener of the port has one of these protocols.
    pub(super) fn speaks(&self, listeners: &[Listener<'_>], wanted: &[Protocol]) -> bool {
        self.listeners.iter().any(|n| listeners[*n].protocol.is_some_and(|p| wanted.contains(&p)))
    }
}

/// The arguments of `listen` for a port of these addresses.
fn words(addresses: &[String], number: u16) -> Vec<String> {
    let one = |address: &String| match address.as_str() {
        "" => number.to_string(),
        text if text.contains(':') && !text.starts_with('[') => format!("[{text}]:{number}"),
        text => format!("{text}:{number}"),
    };
    addresses.iter().map(one).collect()
}

/// Whether Ingresses are served at a port in another protocol. `taken` are their arguments of
/// `listen`.
pub(super) fn is_of_ingresses(
    settings: &Settings,
    taken: &BTreeSet<String>,
    addresses: &[String],
    (number, protocol): (u16, Protocol),
) -> bool {
    let number = *settings.gateway_ports.get(&number).unwrap_or(&number);
    let own = match protocol {
        Protocol::Udp => return false,
        Protocol::Http => settings.http.as_slice(),
        Protocol::Https if !settings.passthrough => settings.https.as_slice(),
        Protocol::Https | Protocol::Passthrough | Protocol::Tls | Protocol::Tcp => &[],
    };
    fn parts(word: &str) -> (&str, &str) {
        word.rsplit_once(':').unwrap_or(("", word))
    }
    let is_any = |host: &str| matches!(host, "" | "*" | "0.0.0.0" | "[::]");
    words(addresses, number).iter().any(|word| {
        let (host, port) = parts(word);
        taken.iter().filter(|other| !own.contains(other)).any(|other| {
            let (theirs, at) = parts(other);
            port == at && (host == theirs || is_any(host) || is_any(theirs))
        })
    })
}

/// All ports of all Gateways.
pub(super) fn ports(
    work: &mut Work<'_>,
    gateways: &[Served<'_>],
    listeners: &[Listener<'_>],
    routes: &[Route<'_>],
    attachments: &[Attachment],
) -> Vec<Port> {
    let mapped = &work.settings.gateway_ports;
    let mut ports: BTreeMap<(Vec<String>, u16, bool), Port> = BTreeMap::new();
    for (number, listener) in listeners.iter().enumerate().filter(|(_, one)| one.programmed) {
        let addresses = gateways[listener.gateway].addresses.clone();
        let udp = listener.protocol == Some(Protocol::Udp);
        let port = ports.entry((addresses.clone(), listener.port, udp)).or_insert_with(|| Port {
            addresses,
            number: *mapped.get(&listener.port).unwrap_or(&listener.port),
            udp,
            listeners: Vec::new(),
            names: BTreeMap::new(),
        });
        port.listeners.push(number);
    }
    for port in ports.values_mut() {
        for number in 0..gateways.len() {
            let own = |n: &usize| listeners[*n].gateway == number;
            let own: Vec<usize> = port.listeners.iter().copied().filter(own).collect();
            assign_names(work, port, listeners, (routes, attachments), &own);
        }
    }
    ports.into_values().collect()
}

/// Assigns names to the listeners of a Gateway, except names of older Gateways.
fn assign_names(
    work: &mut Work<'_>,
    port: &mut Port,
    listeners: &[Listener<'_>],
    (routes, attachments): (&[Route<'_>], &[Attachment]),
    own: &[usize],
) {
    // A listener has its own hostname, whatever routes are attached.
    for number in own {
        let listener = &listeners[*number];
        let name = Name { listener: *number, routes: Vec::new() };
        let taken = port.names.entry(listener.hostname.clone()).or_insert(name);
        if taken.listener != *number {
            let text = "a route of an older Gateway has this name at the same port";
            work.say(&listener.owner, Severity::Error, "HostTaken", &listener.hostname, text);
        }
    }
    for number in own {
        for one in attachments.iter().filter(|one| one.listener == *number) {
            for host in &one.hosts {
                assign_name(work, port, listeners, routes, (*number, one.route), host);
            }
        }
    }
}

/// Assigns a name to a route of a listener, unless another listener has it.
fn assign_name(
    work: &mut Work<'_>,
    port: &mut Port,
    listeners: &[Listener<'_>],
    routes: &[Route<'_>],
    (number, route): (usize, usize),
    shared: &Shared,
) {
    let host = shared.name.as_str();
    let listener = &listeners[number];
    // Only the most specific listener of a name serves it. Routes of another listener do not.
    let nearer = port.listeners.iter().any(|other| {
        let other = &listeners[*other];
        other.gateway == listener.gateway
            && other.hostname != listener.hostname
            && names::covers(&other.hostname, host)
            && names::by_precision(&other.hostname, &listener.hostname).is_lt()
    });
    if nearer {
        return;
    }
    let kept = port.listeners.iter().map(|other| &listeners[*other]);
    let kept = kept.filter(|other| other.gateway < listener.gateway);
    if let Some(other) = kept.into_iter().find(|other| other.claims_against(listener, host)) {
        let text = format!("{} has this name at the same port; the name is left out", other.owner);
        work.say(&routes[route].id, Severity::Error, "HostTaken", host, &text);
        return;
    }
    let name =
        port.names.entry(host.to_owned()).or_insert(Name { listener: number, routes: Vec::new() });
    if name.listener != number {
        let owner = &listeners[name.listener].owner;
        let text = format!("{owner} has this name at the same port; the name is left out");
        work.say(&routes[route].id, Severity::Error, "HostTaken", host, &text);
        return;
    }
    match name.routes.iter_mut().find(|(known, _)| *known == route) {
        None => name.routes.push((route, shared.requested.clone())),
        Some((_, asked)) if names::by_precision(&shared.requested, asked).is_lt() => {
            shared.requested.clone_into(asked);
        }
        Some(_) => {}
    }
}
