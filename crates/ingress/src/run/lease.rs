//! Leader election by a Lease. The leader writes into the cluster; all pods serve.

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};
use kube::{Client, Error};
use tokio::time::{sleep, timeout};

use super::shared::{LONGEST_CALL, Options, Shared, is_held, say};

/// A holder that has not renewed the Lease for this long has lost it.
const DURATION: Duration = Duration::from_secs(15);
const RENEW: Duration = Duration::from_secs(4);
/// A write that begins within so long of a renewal ends before another pod takes the Lease.
const HELD: Duration = DURATION.saturating_sub(LONGEST_CALL);

/// The Lease as last seen, and since when it is unchanged. The age is measured by the own clock,
/// since clocks of machines differ.
struct Seen {
    spec: Option<LeaseSpec>,
    since: Instant,
}

/// Acquires the Lease when it is free, and renews it, forever.
pub async fn hold(client: Client, options: Options, shared: Arc<Shared>) {
    let api: Api<Lease> = Api::namespaced(client, &options.lease.0);
    let mut seen = Seen { spec: None, since: Instant::now() };
    let mut failed = false;
    loop {
        let begun = Instant::now();
        let until = match timeout(LONGEST_CALL, step(&api, &options, &mut seen)).await {
            Ok(Ok(leads)) => {
                failed = false;
                leads.then(|| begun + HELD)
            }
            other => {
                if !std::mem::replace(&mut failed, true) {
                    let why = match &other {
                        Ok(Err(error)) => super::watch::error_chain(error),
                        _ => "the API server does not answer".to_owned(),
                    };
                    say("warn", format_args!("Lease: {why}"));
                }
                *shared.leads.borrow()
            }
        };
        shared.leads.send_if_modified(|now| {
            let time = Instant::now();
            let changed = is_held(*now, time) != is_held(until, time);
            *now = until;
            changed
        });
        sleep(RENEW).await;
    }
}

/// Acquires or renews the Lease, if possible. Returns whether this pod holds it.
async fn step(api: &Api<Lease>, options: &Options, seen: &mut Seen) -> Result<bool, Error> {
    let name = &options.lease.1;
    let now = Some(MicroTime(Timestamp::now()));
    let mine = |transitions: i32, acquire_time: Option<MicroTime>| LeaseSpec {
        holder_identity: Some(options.identity.clone()),
        lease_duration_seconds: Some(DURATION.as_secs() as i32),
        acquire_time: acquire_time.or(now.clone()),
        renew_time: now.clone(),
        lease_transitions: Some(transitions),
        ..LeaseSpec::default()
    };
    let Some(mut lease) = api.get_opt(name).await? else {
        let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
        let lease = Lease { metadata, spec: Some(mine(0, None)) };
        return won(api.create(&PostParams::default(), &lease).await);
    };
    if seen.spec != lease.spec {
        *seen = Seen { spec: lease.spec.clone(), since: Instant::now() };
    }
    let spec = lease.spec.unwrap_or_default();
    let holder = spec.holder_identity.as_deref().unwrap_or_default();
    let own = holder == options.identity;
    if !own && !holder.is_empty() && seen.since.elapsed() < DURATION {
        return Ok(false);
    }
    let transitions = spec.lease_transitions.unwrap_or(0).saturating_add(i32::from(!own));
    lease.spec = Some(mine(transitions, spec.acquire_time.filter(|_| own)));
    won(api.replace(name, &PostParams::default(), &lease).await)
}

/// Whether the Lease was written. On 409 another pod was faster.
fn won(result: Result<Lease, Error>) -> Result<bool, Error> {
    match result {
        Ok(_) => Ok(true),
        Err(Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}

/// Releases the Lease, so that the next leader need not wait until it expires. This pod writes
/// nothing from here on.
pub async fn release(client: Client, options: &Options, shared: &Shared) {
    if shared.leads.send_replace(None).is_none() {
        return;
    }
    let api: Api<Lease> = Api::namespaced(client, &options.lease.0);
    let given = async {
        let mut lease = api.get(&options.lease.1).await?;
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() == Some(&options.identity) {
            spec.holder_identity = None;
            api.replace(&options.lease.1, &PostParams::default(), &lease).await?;
        }
        Ok::<(), Error>(())
    };
    let _ = timeout(LONGEST_CALL, given).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lease_is_left_before_another_pod_takes_it() {
        let begun = Instant::now();
        let held = |since| is_held(Some(begun + HELD), begun + since);
        assert!(held(RENEW + LONGEST_CALL), "one failure is none");
        let looks = (0..20).map(Duration::from_secs).filter(|since| held(*since));
        // The last write may be answered late.
        assert!(looks.max().unwrap() + LONGEST_CALL < DURATION);
        assert!(!is_held(None, begun));
    }
}
