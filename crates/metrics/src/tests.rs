use std::sync::atomic::AtomicU64;
use std::time::Duration;

use super::*;

fn registry(tallies: usize) -> Registry {
    let words: Vec<_> = (0..Registry::words_for(tallies)).map(|_| AtomicU64::new(0)).collect();
    Registry::new(words.leak())
}

#[test]
fn in_each_period_one_judges_and_tells_what_is_new() {
    let all = registry(1);
    let nobody = || -> bool { unreachable!("somebody did in this period") };
    assert_eq!(all.judge(7, || false), None);
    assert_eq!(all.judge(7, nobody), None);
    assert_eq!(all.judge(8, || true), Some(true));
    assert_eq!((all.judge(8, nobody), all.judge(7, nobody)), (None, None));
    assert_eq!(all.judge(20, || true), None);
    assert_eq!(all.judge(21, || false), Some(false));
    let late = all.judge(22, || {
        assert_eq!(all.judge(23, || true), Some(true));
        true
    });
    assert_eq!(late, None, "it was told");
    assert!(all.judged());
}

#[test]
fn tallies_add_up() {
    let all = registry(3);
    all.tally(0).unwrap().add(Metric::Requests, 2);
    all.tally(2).unwrap().add(Metric::Requests, 3);
    assert_eq!(all.sum(Metric::Requests), 5);
    assert!(all.tally(3).is_none());
}

#[test]
fn a_connection_may_end_in_another_row() {
    let all = registry(2);
    all.tally(0).unwrap().add(Metric::Active, 1);
    all.tally(1).unwrap().sub(Metric::Active, 1);
    assert_eq!(all.sum(Metric::Active), 0);
}

#[test]
fn what_a_dead_loop_counted_stays_and_what_it_had_open_does_not() {
    let all = registry(3);
    let (own, tally) = (all.tally(0).unwrap(), all.tally(2).unwrap());
    tally.set_owner(TallyOwner { pid: 7, ..TallyOwner::default() });
    tally.add(Metric::Accepted, 7);
    tally.add(Metric::Active, 2);
    tally.record(Histogram::Turn, Duration::from_millis(3));
    tally.begin_turn(5_000_000_000, 9);
    tally.end_turn(11);
    assert_eq!(all.loops().len(), 1);
    all.bury(2, &own);
    all.bury(9, &own);
    assert_eq!((all.sum(Metric::Accepted), own.get(Metric::Accepted)), (7, 7));
    assert_eq!((all.sum(Metric::Active), all.sum(Metric::Busy)), (0, 11));
    assert_eq!(all.times(Histogram::Turn).count, 1);
    assert_eq!((all.loops().len(), tally.get(Metric::Accepted)), (0, 0));
}

#[test]
fn each_name_is_said_once_and_does_not_stutter() {
    let mut names = Vec::new();
    for table in TABLES {
        for column in table.columns {
            assert!(!column.help.is_empty() && !column.help.starts_with(' '));
            if column.kind != MetricKind::Shown {
                assert!(column.help.ends_with('.'), "{}", column.name);
                names.push(table.metric(column));
            }
        }
    }
    for name in &names {
        assert!(names.iter().filter(|other| *other == name).count() == 1, "{name}");
        let words: Vec<_> = name.split('_').collect();
        assert!(words.iter().all(|w| words.iter().filter(|o| o == &w).count() == 1), "{name}");
    }
}

fn page(all: &Registry) -> MetricsPage {
    let mut page = MetricsPage::new();
    all.show(&mut page);
    page
}

#[test]
fn prometheus_text_names_type_and_help() {
    let all = registry(1);
    all.tally(0).unwrap().add(Metric::Accepted, 4);
    let text = page(&all).text(PageForm::Prometheus(LoopDetail::Each, IdleRows::LeftOut));
    assert!(text.contains("# TYPE weir_accepted_connections_total counter\n"));
    assert!(text.contains("\nweir_accepted_connections_total 4\n"));
    assert!(text.contains("# TYPE weir_active_connections gauge\n"));
    assert!(text.lines().all(|l| l.starts_with("# ") || l.starts_with("weir_")));
}

#[test]
fn of_a_long_table_prometheus_sees_the_rows_that_have_counted() {
    let shown = |rows: u64, idle: IdleRows| {
        let mut page = MetricsPage::new();
        for n in 0..rows {
            let number = |used| MetricValue::Number(u64::from(n == used));
            let requests = MetricValue::Each(vec![0, u64::from(n == 7), 0, 0, 0]);
            let values = vec![("requests", requests), ("processing", number(9))];
            page.add(&ZONES, vec![n.to_string()], values);
            let state = MetricValue::Each(vec![1, u64::from(n == 8), 0, 0, 0]);
            let values = vec![("state", state), ("weight", MetricValue::Number(1))];
            page.add(&UPSTREAMS, vec![n.to_string(), "(all)".to_owned()], values);
        }
        let text = page.text(PageForm::Prometheus(LoopDetail::Sums, idle));
        let count = |begin: &str| text.lines().filter(|line| line.starts_with(begin)).count();
        [count("weir_zone_processing{"), count("weir_upstream_state{") / PEER_STATES.len()]
    };
    assert_eq!(shown(1000, IdleRows::LeftOut), [1000; 2]);
    assert_eq!(shown(1001, IdleRows::LeftOut), [2, 1]);
    assert_eq!(shown(1001, IdleRows::Shown), [1001; 2]);
}

#[test]
fn rows_of_a_table_stand_together_in_any_order_of_additions() {
    let mut page = MetricsPage::new();
    for n in [0u64, 1] {
        let state = MetricValue::Word("armed".into());
        let values = vec![("requests", MetricValue::Number(n)), ("state", state)];
        page.add(&LOOPS, vec![n.to_string(), "a\"b\\".into()], values);
        page.add(&LISTENERS, vec![format!("[::1]:{n}")], vec![("queue", MetricValue::Number(3))]);
    }
    let text = page.text(PageForm::Prometheus(LoopDetail::Each, IdleRows::LeftOut));
    let labels = "loop=\"a\\\"b\\\\\"";
    let lines = format!(
        "{{worker=\"0\",{labels}}} 0\nweir_loop_requests_total{{worker=\"1\",{labels}}} 1\n"
    );
    assert!(
        text.contains(&format!(
            "# TYPE weir_loop_requests_total counter\nweir_loop_requests_total{lines}"
        )),
        "{text}"
    );
    assert!(
        text.contains(&format!("weir_loop_state{{worker=\"1\",{labels},state=\"armed\"}} 1\n"))
    );
    assert!(
        text.contains(&format!("weir_loop_state{{worker=\"1\",{labels},state=\"awake\"}} 0\n"))
    );
    let json = page.text(PageForm::Json);
    assert!(
        json.contains(r#"{"worker":0,"loop":"a\"b\\","state":"armed","requests":0}"#),
        "{json}"
    );
    assert!(json.contains(r#""listeners":[{"address":"[::1]:0","queue":3},"#), "{json}");
}

#[test]
fn of_rows_with_the_same_labels_prometheus_sees_the_last() {
    let mut page = MetricsPage::new();
    for n in 1..=2 {
        page.add(&LISTENERS, vec!["a".into()], vec![("queue", MetricValue::Number(n))]);
    }
    let text = page.text(PageForm::Prometheus(LoopDetail::Each, IdleRows::LeftOut));
    assert_eq!(text.matches("weir_listener_queue{").count(), 1, "{text}");
    assert!(text.contains("weir_listener_queue{address=\"a\"} 2\n"), "{text}");
    assert_eq!(page.text(PageForm::Json).matches("\"queue\"").count(), 2);
}

#[test]
fn times_of_tallies_add_up() {
    let all = registry(2);
    all.tally(0).unwrap().record(Histogram::Blocked, Duration::from_micros(9));
    all.tally(1).unwrap().record(Histogram::Blocked, Duration::from_millis(7));
    all.tally(1).unwrap().record(Histogram::Turn, Duration::from_secs(1000));
    let times = all.times(Histogram::Blocked);
    assert_eq!((times.count, times.sum), (2, 7009));
    assert_eq!(all.times(Histogram::Handler).count, 0);
    assert_eq!(all.sum(Metric::Accepted), 0);
    let text = page(&all).text(PageForm::Prometheus(LoopDetail::Each, IdleRows::LeftOut));
    assert!(text.contains("\nweir_event_loop_blocked_seconds_count 2\n"), "{text}");
    assert!(text.contains("weir_event_loop_blocked_seconds_bucket{le=\"+Inf\"} 2\n"));
    assert!(text.contains("\nweir_event_loop_blocked_seconds_sum 0.007009\n"), "{text}");
}

#[test]
fn json_has_each_value_once() {
    let all = registry(1);
    all.tally(0).unwrap().add(Metric::Reading, 1);
    let text = page(&all).text(PageForm::Json);
    assert!(text.contains(r#""reading_connections":1,"#), "{text}");
    assert!(text.contains(r#""busy_us":0,"#), "{text}");
    assert!(text.starts_with('{') && text.ends_with('}'));
}
