//! Connections of workers that end while no other loop receives in their place.

use quinn::ConnectionError;

use super::broken::{connect, get};
use super::hq::{client, request, run_client};
use super::*;

const INSIDE: &str = "root .; limit_rate 400k;";

/// Clients get their files whole, and the workers end, after `leave` has been done to the server.
fn transfers_outlive(leave: impl FnOnce(&Server)) {
    let server = start("", INSIDE);
    let large = long(1_000_000);
    server.dir().write("large", &large);
    let Some(mut transfers) = transfers(&server) else { return };
    let old = server.workers();
    leave(&server);
    for (client, dir) in &mut transfers {
        let _ = client.wait();
        assert!(bytes(dir, "large") == large, "{}", server.log());
    }
    old.into_iter().for_each(|worker| server.wait_gone(worker));
}

#[test]
fn requests_outlive_the_end_of_the_server() {
    transfers_outlive(|server| server.signal(Signal::QUIT));
}

#[test]
fn requests_outlive_the_end_of_each_worker() {
    transfers_outlive(|server| {
        server.workers().into_iter().for_each(|pid| server.signal_worker(pid, Signal::QUIT));
    });
}

#[test]
fn requests_outlive_a_reload_that_ends_quic() {
    transfers_outlive(|server| {
        server
            .configure(&conf("", INSIDE).replace("listen 127.0.0.1:%%PORT%% quic reuseport;", ""));
        server.reload();
    });
}

/// The new workers, which pass datagrams on to the old ones, have no connection and end first.
#[test]
fn requests_outlive_a_reload_and_the_end_of_the_server() {
    transfers_outlive(|server| {
        server.reload();
        server.signal(Signal::QUIT);
    });
}

/// A successor understands WINCH in the foreground, too. Its workers come back with a configuration.
#[test]
fn requests_outlive_the_end_of_all_workers() {
    let server = start("", INSIDE);
    let large = long(1_000_000);
    server.dir().write("large", &large);
    let first = server.workers();
    server.signal(Signal::USR2);
    assert!(ask_until(|| server.logged("start worker process ") == 4), "{}", server.log());
    let successor = server.workers().into_iter().find(|pid| !first.contains(pid)).unwrap();
    let _ends = Ends(successor);
    server.signal(Signal::QUIT);
    first.into_iter().for_each(|worker| server.wait_gone(worker));
    let Some(mut transfers) = transfers(&server) else { return };
    let signal = |signal| kill_process(Pid::from_raw(successor).unwrap(), signal).unwrap();
    signal(Signal::WINCH);
    for (client, dir) in &mut transfers {
        let _ = client.wait();
        assert!(bytes(dir, "large") == large, "{}", server.log());
    }
    signal(Signal::HUP);
    assert!(ask_until(|| server.logged("start worker process ") == 6), "{}", server.log());
    let got = ask(&server, server.port(), &[], &["/large"]).unwrap();
    assert!(bytes(&got, "large") == large, "{}", server.log());
}

/// RFC 9114, section 8.1: H3_NO_ERROR.
#[test]
fn clients_are_told_when_the_time_to_end_is_over() {
    let conf = conf("", INSIDE).replace("events", "worker_shutdown_timeout 100ms; events");
    let server = Server::start_in(certified(), WEIR, &conf);
    server.dir().write("large", long(1_000_000));
    let old = server.workers();
    run_client(async {
        let endpoint = client(&server, "h3");
        let (connection, _settings) = connect(&endpoint, &server).await;
        let mut answer = request(&connection, &get("/large", &[])).await;
        assert!(answer.read(&mut [0; 64]).await.unwrap().is_some());
        server.signal(Signal::QUIT);
        let ConnectionError::ApplicationClosed(close) = connection.closed().await else {
            panic!("the client is not told");
        };
        assert_eq!(close.error_code.into_inner(), 0x100);
        assert_eq!(&close.reason[..], b"connection shutdown");
    });
    old.into_iter().for_each(|worker| server.wait_gone(worker));
    server.wait_file("seen.log", " h3 200 /large ", 1);
}

/// RFC 9114, section 5.2: a client that sends a request before it reads GOAWAY is answered.
#[test]
fn requests_on_their_way_at_a_reload_are_served() {
    let server = start("", &format!("{INSIDE} location = /said {{ return 200 served; }}"));
    let large = long(1_000_000);
    server.dir().write("large", &large);
    run_client(async {
        let endpoint = client(&server, "h3");
        let (connection, _control) = connect(&endpoint, &server).await;
        let mut first = request(&connection, &get("/large", &[])).await;
        assert!(first.read(&mut [0; 64]).await.unwrap().is_some());
        server.reload();
        let mut own = connection.accept_uni().await.unwrap();
        let mut said = Vec::new();
        let announced = [7, 8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfc];
        while !said.ends_with(&announced) {
            said.extend_from_slice(&own.read_chunk(1 << 16, true).await.unwrap().unwrap().bytes);
        }
        let mut answer = request(&connection, &get("/said", &[])).await;
        assert!(answer.read_to_end(1 << 16).await.unwrap().ends_with(b"served"));
        let last = own.read_chunk(1 << 16, true).await.unwrap().unwrap().bytes;
        assert_eq!(last[..], [7, 1, 8]);
        assert!(first.read_to_end(1 << 21).await.unwrap().ends_with(&large[large.len() - 1000..]));
        let ConnectionError::ApplicationClosed(close) = connection.closed().await else {
            panic!("the connection was not closed")
        };
        assert_eq!(close.error_code.into_inner(), 0x100);
    });
}
