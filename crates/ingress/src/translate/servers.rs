//! The servers of a group: lines of the configuration, or a file of their own that running workers follow.
//!
//! Pods come and go all the time. With [`Settings::servers_in_files`](crate::settings::Settings::servers_in_files) the
//! configuration names a file (`servers_file`), and stays as it is while the number of pods does not change between none and some.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::ServicePort;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use weir_conf::Directive;

use super::lines::{digest, line};
use crate::annotations::values;

/// The directory of the files, in that of certificates.
pub const DIRECTORY: &str = "servers";

/// The pods behind a port of a Service, as the servers of a group.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerGroup {
    /// The namespace of the Service.
    pub namespace: String,
    /// Its name.
    pub service: String,
    /// Its port.
    pub port: ServicePort,
    /// How often each server stands there.
    pub times: usize,
    /// What is said of each server beside its address.
    pub words: ServerWords,
    /// What the configuration depends on, beside the file: room for so many servers, in steps; 0 for none.
    pub room: usize,
}

/// What is said of each server of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerWords {
    /// Nothing.
    Nothing,
    /// A name that cookies of a canary have.
    CanaryRoute,
    /// A server that fails is asked again.
    NeverDown,
}

impl ServerGroup {
    /// The pods behind a port, once each.
    pub fn new(namespace: &str, service: &str, port: &ServicePort) -> ServerGroup {
        ServerGroup {
            namespace: namespace.to_owned(),
            service: service.to_owned(),
            port: port.clone(),
            times: 1,
            words: ServerWords::Nothing,
            room: 0,
        }
    }

    /// The addresses of the ready pods among these slices of the Service. Servers behind may be at loopback addresses in tests.
    pub fn addresses<'s>(
        &self,
        slices: impl IntoIterator<Item = &'s EndpointSlice>,
        loopback: bool,
    ) -> BTreeSet<String> {
        addresses(slices, &self.port, loopback)
    }

    /// The lines of these servers.
    pub fn lines(&self, addresses: &BTreeSet<String>) -> Vec<Directive> {
        let one = |address: &String| match self.words {
            ServerWords::Nothing => line("server", [address.as_str()]),
            ServerWords::CanaryRoute => {
                let route = format!("route=canary-{}", digest(address.as_bytes()));
                line("server", [address.as_str(), &route])
            }
            ServerWords::NeverDown => line("server", [address.as_str(), "max_fails=0"]),
        };
        (0..self.times).flat_map(|_| addresses.iter().map(one)).collect()
    }

    /// The room that the configuration must have for these servers.
    pub fn room_for(&self, addresses: &BTreeSet<String>) -> usize {
        room(addresses.len() * self.times)
    }
}

/// Room for so many servers, in steps, so that one pod more is the same room; 0 for none.
pub(crate) fn room(servers: usize) -> usize {
    match servers {
        0 => 0,
        servers => servers.next_power_of_two().max(LEAST),
    }
}

/// Most groups have fewer servers.
pub(crate) const LEAST: usize = 2048;

/// The addresses of ready pods, for `server`.
pub(super) fn addresses<'s>(
    slices: impl IntoIterator<Item = &'s EndpointSlice>,
    port: &ServicePort,
    loopback: bool,
) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    for slice in slices {
        let ports = slice.ports.as_deref().unwrap_or_default();
        let number = ports.iter().find(|p| {
            p.name.as_deref().unwrap_or_default() == port.name.as_deref().unwrap_or_default()
        });
        let number = number.and_then(|p| p.port).or(match &port.target_port {
            Some(IntOrString::Int(number)) if ports.is_empty() => Some(*number),
            _ => None,
        });
        let Some(number) = number else { continue };
        for endpoint in &slice.endpoints {
            let ready = endpoint.conditions.as_ref().and_then(|c| c.ready).unwrap_or(true);
            if ready {
                out.extend(
                    endpoint.addresses.iter().filter_map(|ip| address(ip, number, loopback)),
                );
            }
        }
    }
    out
}

/// An address for `server`, if a server behind may have it.
pub(super) fn address(ip: &str, port: i32, loopback: bool) -> Option<String> {
    let port = u16::try_from(port).ok().filter(|port| *port > 0)?;
    let ip: IpAddr = ip.parse().ok()?;
    (loopback || values::is_far(ip)).then(|| match ip {
        IpAddr::V4(ip) => format!("{ip}:{port}"),
        IpAddr::V6(ip) => format!("[{ip}]:{port}"),
    })
}
