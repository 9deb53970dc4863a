use ratatui::Terminal;
use ratatui::backend::TestBackend;

use crate::plain;
use crate::screen::{KeyAction, Screen};
use crate::snapshot::{Snapshot, read};
use crate::values::ShownValues;

/// A snapshot at this second. The last loop works `busy` microseconds per second, the others a
/// tenth of a second.
fn snapshot(loops: usize, second: u32, busy: u32) -> Snapshot {
    let rows: Vec<String> = (0..loops)
        .map(|i| {
            let busy = if i + 1 == loops { busy } else { 100_000 } * second;
            format!(
                "{{\"worker\":0,\"loop\":{i},\"pid\":7,\"tid\":{i},\"state\":\"armed\",\"open\":2,\"busy_us\":{busy},\
                 \"requests\":{},\"blocked\":{{\"count\":{second},\"sum_us\":0,\"steps\":[[100,0],[9000,{second}]]}}}}",
                40 * second
            )
        })
        .collect();
    let text = format!(
        "{{\"now\":{second},\"uptime\":7200,\"build\":{{\"version\":\"9.9\"}},\"totals\":{{\"requests\":{},\"new\":1}},\
         \"balance\":{{\"policy\":\"fair\",\"imbalance\":1.2,\"alarm\":{},\"next\":[1,0]}},\
         \"listeners\":[{{\"address\":\"a\",\"backlog\":511,\"queues\":[3,4]}}],\"unknown\":[],\
         \"culprits\":[{{\"at\":0,\"took_us\":61000,\"what\":\"lua\"}},{{\"at\":1,\"took_us\":9000,\"what\":\"lua\"}}],\
         \"upstreams\":{{\"app\":[{{\"server\":\"1.2.3.4:80\",\"state\":\"failing\",\"fails\":{second},\"last_failure\":1,\"failure\":\"connection refused\",\"requests\":{{\"total\":{second}}}}}]}},\
         \"stream_upstreams\":{{\"db\":[{{\"server\":\"5.6.7.8:90\",\"state\":\"up\",\"active\":2,\"sessions\":{second}}}]}},\
         \"caches\":{{\"big\":{{\"size\":1024,\"max_size\":null,\"entries\":1,\"requests\":{{\"hit\":{},\"miss\":{second}}}}}}},\
         \"loops\":[{}]}}",
        80 * second,
        u8::from(busy > 500_000),
        3 * second,
        rows.join(",")
    );
    serde_json::from_str(&text).unwrap()
}

fn values(loops: usize, busy: u32) -> ShownValues {
    ShownValues::of(&snapshot(loops, 3, busy), &snapshot(loops, 2, busy))
}

fn shown(screen: &Screen, height: u16) -> String {
    shown_in(screen, 120, height)
}

fn shown_in(screen: &Screen, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    terminal.backend().to_string()
}

#[test]
fn rates_are_of_the_time_between_two_snapshots() {
    let f = values(2, 900_000);
    assert_eq!((f.requests, f.waiting), (80.0, (7, 511)));
    assert_eq!(f.loops.iter().map(|l| l.share).collect::<Vec<_>>(), [0.1, 0.9]);
    assert_eq!((f.loops[1].requests, f.loops[1].blocked), (40.0, 9000.0));
    assert_eq!(f.next, "1, then 0");
    assert!(f.state.1 && f.state.0.contains("loop 1 works 1.8 times the mean"), "{}", f.state.0);
    assert_eq!((f.culprits.len(), f.culprits[0].times, f.culprits[0].longest), (1, 2, 61000.0));
    assert_eq!(f.tables.len(), 2);
}

#[test]
fn a_new_loop_shows_its_own_share() {
    let f = ShownValues::of(&snapshot(2, 3, 1), &Snapshot::default());
    assert!(f.loops.iter().all(|l| l.share == 0.0 && l.requests == 0.0), "{f:?}");
}

#[test]
fn plain_text_has_all_values() {
    let text = plain::text(&values(2, 900_000));
    for part in [
        "weir 9.9 · 2 loops in 1 worker · up 2 h 0 min",
        "▲ UNEVEN: loop 1",
        "7 of 511 wait",
        "██████████████████",
        "61 ms  lua (2 times, in 1 loops",
        "app: 1.2.3.4:80",
        "db (stream): 5.6.7.8:90",
        "75 %",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn texts_of_a_server_are_printable_on_a_terminal() {
    let json = r#"{"build": {"version": "\u001b[31m9"}, "health": {"state": "red", "text": "a\nb\u0007"},
        "loops": [{}], "upstreams": {"\u009b1m": [{"server": "\u001b]0;x"}]}}"#;
    let snapshot = read(json.as_bytes()).unwrap();
    let text = plain::text(&ShownValues::of(&snapshot, &snapshot));
    assert!(text.contains("]0;x") && text.contains("[31m9"), "{text}");
    assert!(!text.replace('\n', "").contains(char::is_control), "{text:?}");
    assert!(!text.contains("a\nb"), "{text:?}");
}

#[test]
fn the_screen_marks_a_busy_loop_and_the_next_to_wake() {
    let mut screen = Screen::default();
    for _ in 0..3 {
        screen.take(values(3, 900_000));
    }
    let text = shown(&screen, 30);
    for part in
        ["▲ UNEVEN", "90 %!", "▾ woken next: 1, then 0", "▃▃▃", "Upstream servers", "q leave"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn many_loops_are_scrolled_and_sorted_and_leave_room_for_the_rest() {
    let mut screen = Screen::default();
    screen.take(values(128, 900_000));
    let text = shown(&screen, 24);
    assert!(text.contains("loops more") && text.contains("Upstream servers"), "{text}");
    assert!(!text.contains("90 %"), "{text}");
    screen.apply(KeyAction::Sort);
    assert!(shown(&screen, 24).contains(" 127 ███"), "{}", shown(&screen, 24));
    screen.apply(KeyAction::Sort);
    (0..1000).for_each(|_| screen.apply(KeyAction::Down));
    assert!(shown(&screen, 24).contains("90 %"), "{}", shown(&screen, 24));
    // At any height of the terminal.
    for height in 1..9 {
        shown(&screen, height);
    }
}

/// The important columns fit into 80 columns: others are dropped, and none is cut.
#[test]
fn eighty_columns_show_what_matters() {
    let mut screen = Screen::default();
    for _ in 0..3 {
        screen.take(values(3, 900_000));
    }
    let (narrow, wide) = (shown_in(&screen, 80, 40), shown_in(&screen, 120, 40));
    for part in [
        "7 of 511 wait",
        "B/s sent",
        "in flight   longest  waits",
        "≤ 9.0 ms  ▃▃▃",
        "app: 1.2.3.4:80",
        "failing",
        "connection refused 2 s ago",
        "61 ms, 2 times, 2 s ago: lua",
    ] {
        assert!(narrow.contains(part) && wide.contains(part), "{part}: {narrow}{wide}");
    }
    // A failed server is shown above the others.
    assert!(narrow.find("app: ") < narrow.find("db (stream)"), "{narrow}");
    assert!(wide.contains("failures/s") && wide.contains("waits of the last 41 s"), "{wide}");
    for width in [1, 8, 20, 40, 79, 200] {
        shown_in(&screen, width, 40);
    }
}

/// Without an earlier snapshot, rates are those of the server, and unknown values are not shown as
/// zero.
#[test]
fn the_first_snapshot_has_the_rates_of_the_server() {
    let mut first = snapshot(2, 3, 900_000);
    first.lately = 10.0;
    for l in &mut first.loops {
        (l.lately_requests, l.share_busy) = (250.0, 0.3);
    }
    let f = ShownValues::first(&first);
    assert_eq!((f.requests, f.loops[0].requests, f.loops[0].share), (50.0, 25.0, 0.3));
    assert_eq!(f.tables[0].rows[0].cells[2], "-");
}

#[test]
fn health_goes_before_balance() {
    let mut now = snapshot(2, 3, 900_000);
    let health =
        r#"{"state":"red","text":"shop: 127.0.0.1:8081 fails: connection refused","since":1}"#;
    now.health = serde_json::from_str(health).unwrap();
    let f = ShownValues::of(&now, &snapshot(2, 2, 900_000));
    assert!(f.state.1 && f.state.0.starts_with("✕ RED, 2 s"), "{}", f.state.0);
    assert!(
        f.state.0.ends_with(": shop: 127.0.0.1:8081 fails: connection refused"),
        "{}",
        f.state.0
    );
    assert_eq!(plain::text(&f).lines().nth(1), Some(f.state.0.as_str()));
    now.health.state = "green".to_owned();
    let f = ShownValues::of(&now, &snapshot(2, 2, 900_000));
    assert!(f.state.0.starts_with("▲ UNEVEN"), "{}", f.state.0);
}
