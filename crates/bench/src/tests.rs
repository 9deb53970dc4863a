//! Runs against small servers whose behaviour each test sets.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use crate::{
    Closing, LoadPlan, Pace, RequestFailure, RequestShape, RunOutcome, RunProgress, RunWatcher,
    Sample, Url, json, run, svg, text,
};

mod secure;

/// Starts a server that runs `serve` for each connection, until the process ends.
pub(crate) fn server(serve: impl Fn(TcpStream) + Send + Sync + Clone + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            std::thread::spawn(move || serve(stream));
        }
    });
    address
}

/// Answers each request of a connection with the same bytes.
pub(crate) fn answers(bytes: &'static [u8]) -> SocketAddr {
    server(move |mut stream| {
        let (mut seen, mut piece) = (Vec::new(), [0; 4096]);
        while let Ok(n @ 1..) = stream.read(&mut piece) {
            seen.extend_from_slice(&piece[..n]);
            while let Some(end) = seen.windows(4).position(|w| w == b"\r\n\r\n") {
                let head: Vec<u8> = seen.drain(..end + 4).collect();
                let _ = stream.write_all(bytes);
                if String::from_utf8_lossy(&head).contains("Connection: close") {
                    return;
                }
            }
        }
    })
}

pub(crate) const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

pub(crate) fn plan(address: SocketAddr, requests: u64, connections: usize) -> LoadPlan {
    let urls = [Url::parse("http://a.a/").unwrap()];
    let mut plan = LoadPlan::get(&urls, Some(&address.into())).unwrap();
    plan.requests = Some(requests);
    plan.connections = connections;
    plan.threads = 2;
    plan.timeout = Duration::from_secs(20);
    plan
}

pub(crate) fn outcome(plan: &LoadPlan) -> RunOutcome {
    run(plan, &mut ()).unwrap()
}

pub(crate) fn failures(run: &RunOutcome, kind: RequestFailure) -> u64 {
    run.tally.failures[RequestFailure::ALL.iter().position(|f| *f == kind).unwrap()]
}

#[test]
fn every_request_is_made_once() {
    for (closing, pipeline) in
        [(Closing::Always, 1), (Closing::Never, 1), (Closing::OneIn(3), 1), (Closing::Never, 7)]
    {
        let mut plan = plan(answers(OK), 500, 8);
        (plan.closing, plan.pipeline) = (closing, pipeline);
        let run = outcome(&plan);
        assert_eq!((run.tally.requests(), run.tally.errors()), (500, 0), "{closing:?}");
        assert_eq!(run.tally.statuses.get(&200), Some(&500));
        assert_eq!(run.tally.bytes, 500 * OK.len() as u64);
        match closing {
            Closing::Always => assert_eq!(run.tally.connect.len(), 500),
            Closing::Never => assert_eq!(run.tally.connect.len(), 8),
            Closing::OneIn(_) => assert!((9..500).contains(&run.tally.connect.len())),
        }
    }
}

#[test]
fn bodies_of_every_framing_end() {
    for (bytes, closing) in [
        (&b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"[..], false),
        (b"HTTP/1.1 204 No Content\r\n\r\n", false),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", false),
        (b"HTTP/1.0 200 OK\r\n\r\nuntil the end", true),
    ] {
        let mut plan = plan(answers(bytes), 20, 2);
        plan.closing = if closing { Closing::Always } else { Closing::Never };
        let run = outcome(&plan);
        assert_eq!((run.tally.requests(), run.tally.errors()), (20, 0), "{bytes:?}");
    }
}

#[test]
fn failures_are_told_apart() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let run = outcome(&plan(gone, 5, 1));
    assert_eq!(failures(&run, RequestFailure::Refused), 5);

    let run = outcome(&plan(answers(b"HTTP/1.1 2"), 1, 1).clone_with_close());
    assert_eq!(failures(&run, RequestFailure::Closed), 1);

    let run = outcome(&plan(answers(b"SMTP\r\n\r\n"), 3, 1));
    assert_eq!(failures(&run, RequestFailure::Malformed), 3);

    let silent = server(|mut stream| drop(stream.read_to_end(&mut Vec::new())));
    let mut late = plan(silent, 2, 2);
    late.timeout = Duration::from_millis(30);
    let run = outcome(&late);
    assert_eq!(failures(&run, RequestFailure::Timeout), 2);
    assert!(text(&run).contains("no complete answer in time: 2"));
}

impl LoadPlan {
    fn clone_with_close(&self) -> LoadPlan {
        LoadPlan { closing: Closing::Always, ..self.clone() }
    }
}

#[test]
fn a_kept_connection_closed_by_the_server_counts_apart() {
    // Answers once and closes when the next request arrives.
    let address = server(|mut stream| {
        let mut piece = [0; 4096];
        let _ = stream.read(&mut piece);
        let _ = stream.write_all(OK);
        let _ = stream.read(&mut piece);
        let _ = stream.shutdown(Shutdown::Both);
    });
    let run = outcome(&plan(address, 4, 1));
    assert_eq!((run.tally.requests(), failures(&run, RequestFailure::ClosedKept)), (2, 2));
}

#[test]
fn each_connection_line_of_an_answer_is_read() {
    // Answers once and closes when the next request arrives.
    let address = server(|mut stream| {
        let mut piece = [0; 4096];
        let _ = stream.read(&mut piece);
        let lines = "Connection: x\r\nConnection: y, close\r\nContent-Length: 0\r\n\r\n";
        let _ = stream.write_all(format!("HTTP/1.1 200 OK\r\n{lines}").as_bytes());
        let _ = stream.read(&mut piece);
    });
    let run = outcome(&plan(address, 4, 1));
    assert_eq!((run.tally.requests(), run.tally.errors()), (4, 0), "{}", text(&run));
}

/// More bytes than the sockets of both ends buffer.
const LONG_BODY: usize = 32 << 20;

fn plan_of_long_bodies(address: SocketAddr, requests: u64) -> LoadPlan {
    let url = Url::parse("http://a.a/").unwrap();
    let shape = RequestShape { body: vec![b'x'; LONG_BODY], ..RequestShape::default() };
    let to = address.into();
    let plans = LoadPlan::new(&[url], &shape, Some(&to), None).unwrap();
    LoadPlan { requests: Some(requests), ..plans }
}

/// Reads a head and a long body.
fn read_long_body(stream: &mut TcpStream) {
    let (mut seen, mut piece) = (0, vec![0; 1 << 20]);
    while seen < LONG_BODY {
        match stream.read(&mut piece) {
            Ok(n @ 1..) => seen += n,
            _ => return,
        }
    }
}

#[test]
fn the_first_byte_counts_from_the_end_of_sending() {
    let address = server(|mut stream| {
        #[allow(clippy::disallowed_methods, reason = "a server that is slow is what is tested")]
        std::thread::sleep(Duration::from_millis(300));
        read_long_body(&mut stream);
        let _ = stream.write_all(OK);
        let _ = stream.read(&mut [0; 4096]);
    });
    let run = outcome(&plan_of_long_bodies(address, 1));
    assert_eq!(run.tally.requests(), 1, "{}", text(&run));
    let first_byte = run.tally.first_byte.max() as f64 / 1e6;
    assert!(first_byte < run.tally.log2.max() / 2.0, "{}", text(&run));
}

#[test]
fn a_kept_connection_that_closes_while_a_request_is_sent_counts_apart() {
    let address = server(|mut stream| {
        read_long_body(&mut stream);
        let _ = stream.write_all(OK);
        let _ = stream.read(&mut [0; 4096]);
    });
    let run = outcome(&plan_of_long_bodies(address, 2));
    assert_eq!((run.tally.requests(), failures(&run, RequestFailure::ClosedKept)), (1, 1));
}

#[test]
fn a_server_that_never_answers_is_not_blamed_on_the_client() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let run = outcome(&LoadPlan { pace: Pace::Open { rate: 200.0 }, ..plan(gone, 20, 4) });
    assert_eq!((run.tally.requests(), failures(&run, RequestFailure::Refused)), (0, 20));
    assert!(!text(&run).contains("this client was in the way"), "{}", text(&run));
}

#[test]
fn connections_before_the_first_request_are_not_measured() {
    let mut plan = plan(answers(OK), 40, 4);
    plan.connect_first = Some(Duration::from_millis(50));
    let run = outcome(&plan);
    assert_eq!(run.threads.len(), 2);
    assert!(run.threads.iter().all(|thread| thread.wall <= run.elapsed), "{run:?}");
}

#[test]
fn an_open_loop_counts_from_the_intended_start() {
    // One connection, 20 ms per response, 100 requests due per second: the queue grows.
    let address = server(|mut stream| {
        let mut piece = [0; 4096];
        while let Ok(1..) = stream.read(&mut piece) {
            #[allow(
                clippy::disallowed_methods,
                reason = "a server that is slow is what is tested"
            )]
            std::thread::sleep(Duration::from_millis(20));
            let _ = stream.write_all(OK);
        }
    });
    let mut plan = plan(address, 20, 1);
    plan.pace = Pace::Open { rate: 100.0 };
    let run = outcome(&plan);
    assert_eq!(run.tally.requests(), 20);
    // The last request starts at 190 ms and is answered at 400 ms or later.
    assert!(run.tally.log2.max() >= 200.0, "{}", run.tally.log2.max());
    assert!(run.tally.waited_for_connection >= 10);
    assert!(text(&run).contains("cannot answer 100 a second over so few connections"));
    // The same waits, but the rate was reached: the server was only slow for a moment.
    let mut run = run;
    run.rate = Some(run.requests_per_second());
    assert!(text(&run).contains("some of the time; "), "{}", text(&run));
}

#[test]
fn an_open_loop_sends_at_its_rate() {
    let mut plan = plan(answers(OK), u64::MAX, 4);
    (plan.requests, plan.duration) = (None, Some(Duration::from_millis(200)));
    plan.pace = Pace::Open { rate: 1000.0 };
    let run = outcome(&plan);
    assert_eq!(run.tally.requests(), 200);
    assert!(run.elapsed >= Duration::from_millis(199));
}

#[test]
fn connections_may_open_before_requests() {
    let mut plan = plan(answers(OK), 40, 4);
    plan.connect_first = Some(Duration::from_millis(2));
    let run = outcome(&plan);
    assert_eq!((run.tally.requests(), run.tally.errors()), (40, 0));
    assert_eq!(run.tally.connect.len(), 4);
}

struct Samples(Vec<Sample>);

impl RunWatcher for Samples {
    fn samples(&mut self, samples: &[Sample]) {
        self.0.extend_from_slice(samples);
    }
}

#[test]
fn each_answer_is_a_sample() {
    let mut plan = plan(answers(OK), 5000, 4);
    plan.samples = true;
    let mut samples = Samples(Vec::new());
    let run = run(&plan, &mut samples).unwrap();
    assert_eq!(samples.0.len(), 5000);
    assert!(samples.0.iter().all(|s| s.status == 200 && s.latency_ms > 0.0));
    let most = samples.0.iter().map(|s| s.latency_ms).fold(0.0, f32::max);
    assert!((f64::from(most) - run.tally.percentile(100.0)).abs() < 0.01);
}

#[test]
fn reports_have_their_figures() {
    let run = outcome(&plan(answers(OK), 100, 4));
    let summary = json(&run);
    let keys = ["requests", "errors", "requests_per_second", "latency_ms", "min", "p50", "p90"];
    for key in keys.iter().chain(&["p99", "p99_9", "max", "mean", "stdev", "first_byte_ms"]) {
        assert!(summary.contains(&format!("\"{key}\": ")), "{key} in {summary}");
    }
    assert!(summary.starts_with("{\"requests\": 100, \"errors\": 0, "));
    assert!(svg(&[("here", &run)]).unwrap().starts_with("<svg"));
    assert!(crate::report::hdr(&run).contains("Total count    =          100]"));
    assert!(text(&run).starts_with("100 requests answered in "));
}

#[test]
fn what_was_never_measured_is_null() {
    let gone = server(drop);
    let summary = json(&outcome(&plan(gone, 3, 1)));
    assert!(
        summary.contains("\"latency_ms\": null, ") && summary.contains("\"first_byte_ms\": null, "),
        "{summary}"
    );
}

#[test]
fn rates_count_over_the_planned_duration() {
    // The only request is answered at once, so the run is shorter than its planned duration.
    let mut open = plan(answers(OK), u64::MAX, 2);
    (open.requests, open.duration) = (None, Some(Duration::from_millis(200)));
    open.pace = Pace::Open { rate: 5.0 };
    let run = outcome(&open);
    assert_eq!((run.tally.requests(), run.tally.waited_for_connection), (1, 0));
    assert!(run.requests_per_second() <= 5.0, "{}", run.requests_per_second());
    (open.requests, open.duration) = (Some(1), None);
    let run = outcome(&open);
    assert!(run.requests_per_second() <= 5.0, "{}", run.requests_per_second());
    // No response arrives within the planned duration.
    let mut run = run;
    (run.rate, run.planned_duration, run.tally.in_time) = (None, Some(run.elapsed / 2), 0);
    assert!(run.requests_per_second() > 0.0);
}

#[test]
fn two_lengths_are_no_answer() {
    let bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 4\r\n\r\nhello";
    let run = outcome(&plan(answers(bytes), 1, 1));
    assert_eq!((run.tally.requests(), failures(&run, RequestFailure::Malformed)), (0, 1));
}

#[test]
fn a_short_run_does_not_judge_the_client() {
    let mut run = outcome(&plan(answers(OK), 1, 1));
    let says = |run: &RunOutcome| text(run).contains("this client was the bottleneck");
    for thread in &mut run.threads {
        thread.busy = thread.wall;
    }
    run.elapsed = Duration::from_millis(5);
    assert!(!says(&run));
    run.elapsed = Duration::from_secs(1);
    assert!(says(&run));
}

#[test]
fn an_interrupted_run_reports_its_results() {
    struct Impatient(u64);
    impl RunWatcher for Impatient {
        fn progress(&mut self, progress: &RunProgress) {
            self.0 = progress.done;
        }

        fn interrupts(&mut self) -> bool {
            self.0 == 3
        }
    }
    // The first request of a connection is answered. The next one is not.
    let address = server(|mut stream| {
        let mut piece = [0; 4096];
        let _ = stream.read(&mut piece).and_then(|_| stream.write_all(OK));
        while let Ok(1..) = stream.read(&mut piece) {}
    });
    let run = run(&plan(address, 100, 3), &mut Impatient(0)).unwrap();
    assert!(run.interrupted);
    assert_eq!((run.tally.requests(), run.tally.errors()), (3, 0));
}

#[test]
fn an_interrupt_does_not_wait_for_connections_before_the_first_request() {
    struct Impatient;
    impl RunWatcher for Impatient {
        fn interrupts(&mut self) -> bool {
            true
        }
    }
    let mut plan = plan(answers(OK), 4, 2);
    plan.connect_first = Some(Duration::from_secs(5));
    let run = run(&plan, &mut Impatient).unwrap();
    assert!(run.interrupted);
    assert_eq!((run.tally.requests(), run.tally.errors()), (0, 0));
}
