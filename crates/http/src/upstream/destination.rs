//! Servers that a variable names: a group of the configuration, an address, or a name to resolve.

use std::pin::pin;

use weir_log::Level;
use weir_upstream::{Group, PeerAddress};

use super::client::{Waited, wait};
use super::driver::Target;
use super::groups::GROUPS;
use super::passing::UpstreamConf;
use super::url::{Host, Url};
use crate::phases::Step;
use crate::request::Request;

/// The target of a URL.
pub async fn target(
    r: &mut Request,
    passing: &UpstreamConf,
    url: &Url,
    default_port: u16,
) -> Result<Target, Step> {
    let groups = GROUPS.of(&r.site.main_confs);
    if let Some(id) = groups.find(&url.host, url.port, default_port) {
        return Ok(Target::Configured(id));
    }
    let host = String::from_utf8_lossy(&url.host).into_owned();
    let port = url.port.unwrap_or(default_port);
    let endpoints = match &url.address {
        Some(address) => vec![address.endpoint(port)],
        None => resolve(r, passing, &host, port).await?,
    };
    Ok(Target::Found(Group::found(&host, endpoints)))
}

async fn resolve(
    r: &mut Request,
    passing: &UpstreamConf,
    host: &str,
    port: u16,
) -> Result<Vec<PeerAddress>, Step> {
    let core = &r.conf().core;
    let Some(conf) = &core.resolver else {
        r.log(Level::Error, format_args!("no resolver defined to resolve {host}"));
        return Err(Step::Status(502));
    };
    let resolver = r.event_loop.resolvers.of(conf);
    let handle = r.event_loop.handle.clone();
    let resolving = resolver.resolve(&handle, host, core.resolver_timeout);
    match wait(r, passing, pin!(resolving), None).await {
        Waited::Gone => Err(Step::Status(499)),
        Waited::For(Ok(found)) => {
            Ok(found.addresses.into_iter().map(|ip| Host::Ip(ip).endpoint(port)).collect())
        }
        Waited::For(Err(why)) => {
            r.log(Level::Error, format_args!("{host} could not be resolved ({why})"));
            Err(Step::Status(502))
        }
    }
}
