use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use k8s_openapi::jiff::SignedDuration;
use kube::runtime::watcher;

use super::super::cluster::lock;
use super::*;
use crate::report::ObjectId;
use crate::settings::Settings;

/// How long the double keeps an Event after a write, as the API server does by default.
const KEPT: SignedDuration = SignedDuration::from_hours(1);

/// A double of an API server with a clock that the test moves.
#[derive(Debug)]
struct Double {
    now: Mutex<Timestamp>,
    /// Events by their names, with the time of the last write.
    kept: Mutex<BTreeMap<String, (Event, Timestamp)>>,
    /// When something was written.
    writes: Mutex<Vec<Timestamp>>,
    /// The status of calls that read or change Events, if they are refused.
    refuses: Option<u16>,
}

impl Double {
    fn new(refuses: Option<u16>) -> Arc<Double> {
        let now = Mutex::new("2026-01-02T03:04:05Z".parse().unwrap());
        let (kept, writes) = (Mutex::default(), Mutex::default());
        Arc::new(Double { now, kept, writes, refuses })
    }

    fn now(&self) -> Timestamp {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pass(&self, seconds: i64) {
        *self.now.lock().unwrap() += SignedDuration::from_secs(seconds);
        let now = self.now();
        self.kept.lock().unwrap().retain(|_, (_, at)| now.duration_since(*at) < KEPT);
    }

    fn write(&self, name: &str, event: Event) {
        self.writes.lock().unwrap().push(self.now());
        self.kept.lock().unwrap().insert(name.to_owned(), (event, self.now()));
    }

    fn refused(&self, code: u16) -> Failed {
        Failed::Refused(code, "no".to_owned())
    }

    fn one(&self) -> Option<Event> {
        let kept = self.kept.lock().unwrap();
        assert!(kept.len() < 2, "{kept:?}");
        kept.values().next().map(|(event, _)| event.clone())
    }
}

impl Events for Arc<Double> {
    async fn create(&self, event: &Event) -> Result<(), Failed> {
        let name = event.metadata.name.clone().unwrap();
        if self.kept.lock().unwrap().contains_key(&name) {
            return Err(self.refused(409));
        }
        self.write(&name, event.clone());
        Ok(())
    }

    async fn get(&self, _: &str, name: &str) -> Result<Event, Failed> {
        if let Some(code) = self.refuses {
            return Err(self.refused(code));
        }
        let kept = self.kept.lock().unwrap();
        kept.get(name).map(|(event, _)| event.clone()).ok_or_else(|| self.refused(404))
    }

    async fn repeat(&self, _: &str, name: &str, series: &EventSeries) -> Result<(), Failed> {
        let mut event = self.get("", name).await?;
        event.series = Some(series.clone());
        self.write(name, event);
        Ok(())
    }
}

fn publisher(events: &Arc<Double>) -> Publisher<Arc<Double>> {
    let shared = Shared::new(&Settings::default());
    let ingress = json!({ "metadata": { "name": "site", "namespace": "a", "uid": "u" } });
    let ingress = watcher::Event::Apply(serde_json::from_value(ingress).unwrap());
    lock(&shared.cluster.ingresses).apply(ingress);
    Publisher {
        events: events.clone(),
        identity: "pod".to_owned(),
        shared: Arc::new(shared),
        denied: AtomicBool::new(false),
    }
}

fn finding(message: &str) -> Finding {
    let object = ObjectId { kind: "Ingress", namespace: "a".to_owned(), name: "site".to_owned() };
    let (about, message) = ("/".to_owned(), message.to_owned());
    Finding { object, severity: Severity::Warning, reason: "NoService", about, message }
}

/// A process that may lead: its publisher, and what it remembers.
struct Leader {
    publisher: Publisher<Arc<Double>>,
    schedule: Schedule,
    /// The monotonic clock of the process when the world began.
    began: Instant,
}

/// The seconds of a world with this double, during which the processes lead in turns of an hour and
/// a bit. Each looks as often as `publish` does.
async fn lasts(double: &Arc<Double>, seconds: u64, leaders: &mut [Leader]) -> Vec<u64> {
    let finding = finding("there is no such Service");
    let mut untold = Vec::new();
    for at in (0..seconds).step_by(10) {
        let turn = (at / 4000) as usize % leaders.len();
        let Leader { publisher, schedule, began } = &mut leaders[turn];
        let now = *began + Duration::from_secs(at);
        if schedule.is_due(&finding, now) {
            let first = schedule.is_new(&finding);
            let wait = publisher.tell(&finding, first, double.now()).await.unwrap();
            schedule.told(&finding, now + wait);
        }
        if double.one().is_none() {
            untold.push(at);
        }
        double.pass(10);
    }
    untold
}

fn leader(double: &Arc<Double>) -> Leader {
    let (publisher, schedule) = (publisher(double), Schedule::default());
    Leader { publisher, schedule, began: Instant::now() }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(future)
}

#[test]
fn a_finding_that_lasts_is_always_an_event_and_is_written_each_45_minutes_at_most() {
    let day = 24 * 3600;
    for pods in [1, 2, 3] {
        let double = Double::new(None);
        let mut leaders: Vec<Leader> = (0..pods).map(|_| leader(&double)).collect();
        let untold = block_on(lasts(&double, day, &mut leaders));
        assert_eq!(untold, Vec::<u64>::new(), "{pods} pods");
        let writes = double.writes.lock().unwrap();
        let shortest = writes.windows(2).map(|two| two[1].duration_since(two[0])).min();
        assert!(shortest >= Some(SignedDuration::from_mins(45)), "{pods} pods: {shortest:?}");
        // kubectl says how often it was seen, and since when.
        let event = double.one().unwrap();
        assert_eq!(event.series.unwrap().count as usize, writes.len());
        assert_eq!(event.event_time.unwrap().0, writes[0]);
    }
}

#[test]
fn without_the_right_to_change_events_a_finding_is_told_anew_when_its_event_has_expired() {
    let double = Double::new(Some(403));
    let untold = block_on(lasts(&double, 84_000, &mut [leader(&double)]));
    assert!(untold.iter().all(|at| *at >= 3600), "{untold:?}");
    assert_eq!(double.writes.lock().unwrap().len(), 16);
    assert!(double.one().unwrap().series.is_none());
}

#[test]
fn an_event_from_a_clock_that_is_ahead_is_a_new_one() {
    let double = Double::new(None);
    let one = publisher(&double);
    let told = |now| block_on(one.tell(&finding("gone"), true, now)).unwrap();
    assert_eq!(told(double.now() + SignedDuration::from_hours(5)), AGAIN);
    assert_eq!(told(double.now()), AGAIN);
    assert_eq!(double.writes.lock().unwrap().len(), 1);
}

#[test]
fn a_finding_that_is_over_is_due_when_it_returns() {
    let (mut schedule, now) = (Schedule::default(), Instant::now());
    let one = finding("gone");
    assert!(schedule.is_due(&one, now) && schedule.first().is_none());
    schedule.told(&one, now + AGAIN);
    assert!(!schedule.is_due(&one, now + AGAIN / 2) && schedule.is_due(&one, now + AGAIN));
    assert_eq!(schedule.first(), Some(now + AGAIN));
    schedule.keep_only(std::slice::from_ref(&one));
    assert!(!schedule.is_due(&one, now));
    schedule.keep_only(&[]);
    assert!(schedule.is_due(&one, now));
    assert!(!schedule.is_due(&Finding { severity: Severity::Note, ..one }, now));
}

#[test]
fn a_note_of_any_letters_fits_into_an_event() {
    let double = Double::new(None);
    let long = finding(&"\u{1F980}é".repeat(400));
    block_on(publisher(&double).tell(&long, true, double.now())).unwrap();
    let note = double.one().unwrap().note.unwrap();
    assert!((1018..=1024).contains(&note.len()), "{}", note.len());
    assert_eq!(cut("short", 9), "short");
}
