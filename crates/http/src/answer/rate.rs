//! `limit_rate`: limits the rate at which an answer is sent.

use std::io;
use std::time::Duration;

use weir_engine::Chain;

use crate::request::Request;

/// A limit in force.
#[derive(Debug, Clone, Copy)]
pub struct Limit {
    rate: u64,
    after: u64,
}

/// The rate limit of the request, if it has one. The settings are evaluated once, and kept.
pub fn rate(r: &mut Request) -> Option<Limit> {
    let core = &r.conf().core;
    if let (None, Some(template)) = (r.limit_rate, &core.limit_rate) {
        r.limit_rate = Some(template.size(r));
    }
    let rate = r.limit_rate.filter(|n| *n > 0)?;
    if let (None, Some(template)) = (r.limit_rate_after, &core.limit_rate_after) {
        r.limit_rate_after = Some(template.size(r));
    }
    let after = r.limit_rate_after.unwrap_or(0);
    Some(Limit { rate, after })
}

/// Sends the chain within the limit: sends what the rate allows by now, and waits until it allows more.
pub async fn send_limited(r: &mut Request, chain: &mut Chain, limit: Limit) -> io::Result<()> {
    let handle = r.event_loop.handle.clone();
    let mut sent = r.output.sent;
    while !chain.is_empty() {
        let elapsed = handle.now().saturating_duration_since(r.started);
        let allowed = limit.rate.saturating_mul(elapsed.as_secs() + 1).saturating_add(limit.after);
        if allowed <= sent {
            let wait = (sent - allowed).saturating_mul(1000) / limit.rate + 1;
            if !r.client_stays_for(Duration::from_millis(wait), r.sending()).await {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            continue;
        }
        let mut part = chain.split_to(allowed - sent);
        sent += part.len();
        r.send_part(&mut part).await?;
    }
    Ok(())
}
