//! `ngx.balancer`: the server and options that a script sets for an attempt.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use weir_upstream::{Failure, Limits, Peer, PeerOptions};
use weir_values::{Address, forwarded};

use super::natives::Natives;
use crate::modules::lua::balancer::with_choice;
use crate::modules::lua::current::{self, NgxError, Phase, phase, with};
use crate::modules::lua::script::Side;
use crate::upstream::choosing::{Selection, Situation};
use crate::upstream::url::Url;

/// Longer than any server runs: stands for no timeout.
const EVER: Duration = Duration::from_secs(1_000_000_000);

/// Adds the functions of this part. The prelude returns their errors to the script.
pub fn install(natives: &Natives<'_>) -> mlua::Result<()> {
    natives.add_refusing(
        "balancer_peer",
        |_, (address, port, host): (mlua::String, f64, Option<mlua::String>)| {
            let host = host.map(|host| host.as_bytes().to_vec());
            choose(|_, selection| {
                let peer = peer(&address.as_bytes(), port)?;
                selection.peer = Some(Arc::new(peer));
                if let Some(host) = host.filter(|host| !host.is_empty()) {
                    selection.host = Some(host);
                }
                Ok(())
            })
        },
    )?;
    natives.add_refusing("balancer_tries", |_, count: f64| {
        choose(|situation, selection| Ok(more_tries(*situation, selection, count)))
    })?;
    natives.add_refusing("balancer_failure", |_, ()| {
        choose(|_, selection| {
            let before = selection.before;
            let status = |failure: Failure| match current::side() {
                Side::Requests => failure.response(),
                // Sessions have no statuses.
                Side::Sessions => 0,
            };
            Ok((before.map(kind), before.map(status)))
        })
    })?;
    natives.add_refusing("balancer_timeouts", |_, (connect, send, read): (f64, f64, f64)| {
        choose(|_, selection| {
            let times = &mut selection.times;
            times.connect = time(connect).or(times.connect);
            times.send = time(send).or(times.send);
            times.read = time(read).or(times.read);
            Ok(())
        })
    })?;
    natives.add_refusing("balancer_keepalive", |_, (idle, requests): (f64, f64)| {
        choose(|situation, selection| {
            if selection.peer.is_none() {
                return Err("no current peer set".into());
            }
            selection.keepalive = Some(Limits {
                idle: situation.idle,
                requests: if requests < 1.0 { u64::MAX } else { requests as u64 },
                time: EVER,
                timeout: if idle > 0.0 { long(idle) } else { EVER },
                local: false,
            });
            Ok(())
        })
    })?;
    natives.add_refusing("balancer_recreate", |_, ()| {
        choose(|_, selection| {
            selection.recreates = true;
            Ok(())
        })
    })?;
    natives.add_refusing("balancer_tls", |_, on: bool| {
        choose(|_, selection| {
            if on && !selection.can_secure {
                return Err("the request is passed on without TLS".into());
            }
            selection.plain = !on;
            Ok(())
        })
    })?;
    natives.add_refusing("balancer_bind", |_, address: mlua::String| {
        choose(|_, selection| {
            selection.from = Some(local(&address.as_bytes())?);
            Ok(())
        })
    })
}

/// Calls `f` with the choice of the running script, if its phase is the balancer's.
fn choose<T>(
    f: impl FnOnce(&Situation, &mut Selection) -> Result<T, NgxError>,
) -> Result<T, NgxError> {
    if phase() == Phase::Balancer {
        return with_choice(f).ok_or(NgxError::NoRequest)?;
    }
    match with(|r| r.contexts.upstream.current.is_none())? {
        true => Err("no upstream found".into()),
        false => Err("API disabled in the current context".into()),
    }
}

/// The server at an address. `port` is used if the address has none.
fn peer(address: &[u8], port: f64) -> Result<Peer, NgxError> {
    let url = Url::parse(address, false)?;
    let Some(host) = &url.address else { return Err("no host allowed".into()) };
    // Cut to 16 bits, as a conversion in C does.
    let endpoint = host.endpoint(url.port.unwrap_or(port as i64 as u16));
    Ok(Peer::new(endpoint, String::from_utf8_lossy(address), PeerOptions::default()))
}

/// Allows more attempts. Returns a warning if that many are not allowed.
fn more_tries(situation: Situation, selection: &mut Selection, count: f64) -> Option<&'static str> {
    let count = count as u32;
    let room = situation.most.saturating_sub(situation.tries);
    let reduced = situation.most > 0 && count > room;
    selection.more = if reduced { room } else { count };
    reduced.then_some("reduced tries due to limit")
}

/// The kind of a failure, as scripts know it.
fn kind(failure: Failure) -> &'static str {
    match failure {
        Failure::Status(403 | 404) => "next",
        _ => "failed",
    }
}

/// Seconds as a duration.
fn long(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(EVER).min(EVER)
}

/// Seconds as a duration; `None` below a millisecond.
fn time(seconds: f64) -> Option<Duration> {
    (seconds >= 0.001).then(|| long(seconds))
}

fn local(address: &[u8]) -> Result<SocketAddr, NgxError> {
    match forwarded::parse(address) {
        Some(Address::Inet(local)) => Ok(local),
        _ => Err(format!("invalid addr {}", String::from_utf8_lossy(address)).into()),
    }
}
