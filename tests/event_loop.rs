//! How long handlers wait and take: measured, shown, warned of.

use weir_testkit::Server;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

#[test]
fn a_handler_that_holds_the_loop_up_is_named() {
    let server = Server::start(
        WEIR,
        "events { }
         http {
             log_format times $uri:$event_loop_blocked;
             access_log %%DIR%%/access.log times;
             server {
                 listen 127.0.0.1:%%PORT%%;
                 location /slow { work sleep 60ms; return 204; }
                 location /patient { blocked_threshold 10s; work sleep 60ms; return 204; }
                 location /status { weir_status; }
             }
         }",
    );
    assert_eq!(server.get("/patient").status, 204);
    assert_eq!(server.get("/slow").status, 204);
    server.wait_log("by the rewrite phase, location: \"/slow\"", 1);
    let log = server.log();
    assert!(!log.contains("location: \"/patient\""), "{log}");

    let status = server.get("/status").body();
    let value = |name: &str| {
        let line = status.lines().find(|l| l.starts_with(name));
        let number = line.and_then(|l| l.split(' ').next_back()).map(str::to_owned);
        number.and_then(|n| n.parse::<f64>().ok()).unwrap_or_else(|| panic!("{name}: {status}"))
    };
    assert_eq!(value("weir_slow_handlers_handlers_total"), 1.0);
    assert!(value("weir_handler_seconds_sum") > 0.1);
    assert!(value("weir_event_loop_blocked_seconds_count") >= 3.0);
    assert!(value("weir_turn_seconds_count") >= 1.0);
}
