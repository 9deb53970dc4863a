//! Findings as Events, which `kubectl describe` shows below their object.
//!
//! Kubernetes forgets an Event after an hour. A finding that lasts is told again before that: its
//! Event gets a series, which counts, as client-go's recorder does it. The Event itself says when it
//! was last told, so that a new leader does not tell all findings anew.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::shared::{LONGEST_CALL, Report, Shared, next_round, say};
use crate::report::{Finding, Severity};
use crate::translate::digest;

const CONTROLLER: &str = "weir.internal/ingress";
/// How long until a finding that lasts is told again.
const AGAIN: Duration = Duration::from_secs(45 * 60);
/// The pause between two Events. 10,000 wrong Ingresses are reported within minutes, and the load
/// on the API server is bounded.
const PACE: Duration = Duration::from_millis(20);
/// Limits of Kubernetes, in bytes.
const LONGEST_NOTE: usize = 1024;
const LONGEST_INSTANCE: usize = 128;
/// With the digest behind it, a name stays below the limit of 253.
const LONGEST_NAME: usize = 200;
/// The most findings that are remembered as reported. Further ones are not reported.
const MOST: usize = 50_000;

/// Reports findings, forever.
pub async fn publish(client: Client, identity: String, shared: Arc<Shared>) {
    let (mut reports, mut leads) = (shared.report.subscribe(), shared.leads.subscribe());
    let publisher = Publisher {
        events: client,
        identity,
        shared: shared.clone(),
        denied: AtomicBool::new(false),
    };
    let mut schedule = Schedule::default();
    // The report whose findings are all told, and when the first of them is told again.
    let mut finished: Option<(Arc<Report>, Option<Instant>)> = None;
    let mut failed = false;
    loop {
        next_round(&mut reports, &mut leads).await;
        'report: loop {
            let report = reports.borrow_and_update().clone();
            if !shared.leads() {
                break;
            }
            if let Some((last, due)) = &finished
                && Arc::ptr_eq(last, &report)
                && due.is_none_or(|due| Instant::now() < due)
            {
                break;
            }
            schedule.keep_only(&report.findings);
            for finding in &report.findings {
                let now = Instant::now();
                if !schedule.is_due(finding, now) {
                    continue;
                }
                let first = schedule.is_new(finding);
                match publisher.tell(finding, first, Timestamp::now()).await {
                    Ok(wait) => {
                        failed = false;
                        schedule.told(finding, now + wait);
                    }
                    Err(why) => {
                        if !std::mem::replace(&mut failed, true) {
                            say("warn", format_args!("Event: {why}"));
                        }
                        sleep(Duration::from_secs(5)).await;
                        continue 'report;
                    }
                }
                sleep(PACE).await;
                // A newer report may differ.
                if reports.has_changed().unwrap_or(false) || !shared.leads() {
                    continue 'report;
                }
            }
            finished = Some((report, schedule.first()));
            break;
        }
    }
}

/// Which findings were told, and when each is due again.
#[derive(Debug, Default)]
struct Schedule(HashMap<Finding, Instant>);

impl Schedule {
    /// Forgets findings that are over. They are told again if they return.
    fn keep_only(&mut self, findings: &[Finding]) {
        let now: HashSet<&Finding> = findings.iter().collect();
        self.0.retain(|finding, _| now.contains(finding));
    }

    fn is_new(&self, finding: &Finding) -> bool {
        !self.0.contains_key(finding)
    }

    fn is_due(&self, finding: &Finding, now: Instant) -> bool {
        finding.severity >= Severity::Warning
            && match self.0.get(finding) {
                Some(due) => now >= *due,
                None => self.0.len() < MOST,
            }
    }

    fn told(&mut self, finding: &Finding, due: Instant) {
        self.0.insert(finding.clone(), due);
    }

    /// When the first finding is due.
    fn first(&self) -> Option<Instant> {
        self.0.values().min().copied()
    }
}

/// A failed call.
#[derive(Debug)]
enum Failed {
    /// The API server refuses this call: its status and message. A retry would not change that.
    Refused(u16, String),
    /// The API server is away or has too much to do.
    Unavailable(String),
}

/// The Events of an API server.
trait Events: Sync {
    fn create(&self, event: &Event) -> impl Future<Output = Result<(), Failed>> + Send;

    fn get(
        &self,
        namespace: &str,
        name: &str,
    ) -> impl Future<Output = Result<Event, Failed>> + Send;

    /// Replaces the series of an Event.
    fn repeat(
        &self,
        namespace: &str,
        name: &str,
        series: &EventSeries,
    ) -> impl Future<Output = Result<(), Failed>> + Send;
}

impl Events for Client {
    async fn create(&self, event: &Event) -> Result<(), Failed> {
        let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
        let api: Api<Event> = Api::namespaced(self.clone(), namespace);
        call(api.create(&PostParams::default(), event)).await.map(drop)
    }

    async fn get(&self, namespace: &str, name: &str) -> Result<Event, Failed> {
        let api: Api<Event> = Api::namespaced(self.clone(), namespace);
        call(api.get(name)).await
    }

    async fn repeat(
        &self,
        namespace: &str,
        name: &str,
        series: &EventSeries,
    ) -> Result<(), Failed> {
        let api: Api<Event> = Api::namespaced(self.clone(), namespace);
        let patch = Patch::Merge(json!({ "series": series }));
        call(api.patch(name, &PatchParams::default(), &patch)).await.map(drop)
    }
}

async fn call<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Failed> {
    match timeout(LONGEST_CALL, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status)))
            if matches!(status.code, 400..500) && status.code != 429 =>
        {
            Err(Failed::Refused(status.code, status.message))
        }
        Ok(Err(error)) => Err(Failed::Unavailable(super::watch::error_chain(&error))),
        Err(_) => Err(Failed::Unavailable("the API server does not answer".to_owned())),
    }
}

struct Publisher<E> {
    events: E,
    identity: String,
    shared: Arc<Shared>,
    /// Whether a missing right to repeat Events was logged.
    denied: AtomicBool,
}

impl<E: Events> Publisher<E> {
    /// Tells a finding unless its Event says that it was told lately. Returns how long it need not
    /// be told again, or why the API server cannot be asked now. A refusal is logged the first time.
    async fn tell(
        &self,
        finding: &Finding,
        first: bool,
        now: Timestamp,
    ) -> Result<Duration, String> {
        let Some(event) = self.event(finding, now) else { return Ok(AGAIN) };
        let told = match self.events.create(&event).await {
            // Another process has told it, or this one before.
            Err(Failed::Refused(409, _)) => self.tell_again(&event.metadata, now).await,
            other => other.map(|()| self.written()),
        };
        match told {
            Ok(wait) => Ok(wait),
            // The namespace is being deleted.
            Err(Failed::Refused(404, _)) => Ok(AGAIN),
            Err(Failed::Refused(_, why)) => {
                if first {
                    say("warn", format_args!("Event about {}: {why}", finding.object));
                }
                Ok(AGAIN)
            }
            Err(Failed::Unavailable(why)) => Err(why),
        }
    }

    /// Counts the finding in the series of its Event, if the Event is old.
    async fn tell_again(&self, event: &ObjectMeta, now: Timestamp) -> Result<Duration, Failed> {
        let namespace = event.namespace.as_deref().unwrap_or_default();
        let name = event.name.as_deref().unwrap_or_default();
        let known = match self.events.get(namespace, name).await {
            Err(Failed::Refused(403, why)) => return Ok(self.cannot_repeat(&why)),
            // It has expired just now, so that it can be created.
            Err(Failed::Refused(404, _)) => return Ok(Duration::ZERO),
            other => other?,
        };
        let (count, last) = match &known.series {
            Some(series) => (series.count, Some(&series.last_observed_time)),
            None => (1, known.event_time.as_ref()),
        };
        // Clocks differ: an Event of the future has just been written.
        let age = last.map_or(AGAIN, |last| {
            Duration::try_from(now.duration_since(last.0)).unwrap_or_default()
        });
        if age < AGAIN {
            return Ok(AGAIN - age);
        }
        let count = count.max(1).saturating_add(1);
        let series = EventSeries { count, last_observed_time: MicroTime(now) };
        match self.events.repeat(namespace, name, &series).await {
            Err(Failed::Refused(403, why)) => Ok(self.cannot_repeat(&why)),
            other => other.map(|()| self.written()),
        }
    }

    fn written(&self) -> Duration {
        self.shared.counters.events.add();
        AGAIN
    }

    /// Without the right to read and change Events, one is written anew when the API server has
    /// forgotten the one before.
    fn cannot_repeat(&self, why: impl fmt::Display) -> Duration {
        if !self.denied.swap(true, Ordering::Relaxed) {
            say("warn", format_args!("Events are not repeated before they expire: {why}"));
        }
        AGAIN
    }

    /// The Event of a finding. Objects without a namespace get none, and deleted objects need none.
    fn event(&self, finding: &Finding, now: Timestamp) -> Option<Event> {
        let id = &finding.object;
        let (api_version, uid) =
            self.shared.cluster.reference(id).filter(|_| !id.namespace.is_empty())?;
        let text = format!("{}: {}", finding.about, finding.message);
        // The name of the Event depends on the finding alone, so that the next leader does not
        // report it again.
        let key = format!("{uid:?} {} {text}", finding.reason);
        let stem = cut(&id.name, LONGEST_NAME);
        Some(Event {
            metadata: ObjectMeta {
                name: Some(format!("{stem}.{}", digest(key.as_bytes()))),
                namespace: Some(id.namespace.clone()),
                ..ObjectMeta::default()
            },
            action: Some("Translate".to_owned()),
            reason: Some(finding.reason.to_owned()),
            note: Some(cut(&text, LONGEST_NOTE).to_owned()),
            type_: Some("Warning".to_owned()),
            event_time: Some(MicroTime(now)),
            reporting_controller: Some(CONTROLLER.to_owned()),
            reporting_instance: Some(cut(&self.identity, LONGEST_INSTANCE).to_owned()),
            regarding: Some(ObjectReference {
                api_version: Some(api_version),
                kind: Some(id.kind.to_owned()),
                name: Some(id.name.clone()),
                namespace: Some(id.namespace.clone()),
                uid,
                ..ObjectReference::default()
            }),
            ..Event::default()
        })
    }
}

/// The first characters of a text that fit into so many bytes.
fn cut(text: &str, longest: usize) -> &str {
    let ends = text.char_indices().map(|(at, letter)| at + letter.len_utf8());
    let end = ends.take_while(|end| *end <= longest).last();
    text.get(..end.unwrap_or(0)).unwrap_or_default()
}

#[cfg(test)]
mod tests;
