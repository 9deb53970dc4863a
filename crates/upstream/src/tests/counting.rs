//! Servers that come and go are counted, and leave nothing behind.

use std::rc::Rc;
use std::sync::atomic::AtomicU64;

use weir_metrics::subjects::{Cells, Counted, SubjectKind};
use weir_metrics::{MetricValue, MetricsPage, PageForm, Registry, UPSTREAMS};

use super::*;
use crate::balance::RoundRobin;
use crate::counts::{Counts, ServerDetail, ServerRows};

const KIND: SubjectKind = SubjectKind::Peer;

fn counts() -> (Registry, Counts) {
    let words: Vec<_> = (0..Registry::words_for(4)).map(|_| AtomicU64::new(0)).collect();
    let registry = Registry::new(words.leak());
    (registry, Counts::new(Rc::new(Cells::new(registry, 1)), KIND))
}

fn group(name: &str, ports: std::ops::Range<u16>) -> Arc<Group> {
    let list = ports.map(|port| peer(port, PeerOptions::default())).collect();
    Arc::new(Group::new(name, list, Box::new(RoundRobin), 7))
}

fn asked(group: &Group) -> Arc<Peer> {
    group.states(Instant::now())[0].peer.clone()
}

#[test]
fn cells_of_servers_that_are_gone_are_used_again() {
    let (registry, counts) = counts();
    // Another loop asks the same servers.
    let other = Counts::new(Rc::new(Cells::new(registry, 2)), KIND);
    let stays = group("stays", 1..2);
    counts.of(&stays, &asked(&stays)).unwrap().cell().add(0, 1);
    let held = group("held", 2..3);
    let in_progress = counts.of(&held, &asked(&held)).unwrap();
    drop(held);
    for n in 0..20_000u16 {
        let pod = group("pods", 3000 + n..3001 + n);
        counts.of(&pod, &asked(&pod)).unwrap().cell().add(0, 1);
        other.of(&pod, &asked(&pod)).unwrap().cell().add(0, 1);
    }
    let all = registry.counted();
    assert!(all.others(KIND).is_none(), "each had a cell of its own");
    assert_eq!(all.of(KIND, "stays\n127.0.0.1:1").numbers[0], 1);
    // Nothing else has got the cell of the one that a request still uses.
    in_progress.cell().add(0, 5);
    let all = registry.counted();
    assert_eq!(all.of(KIND, "held\n127.0.0.1:2").numbers[0], 5);
    assert_eq!(all.of(KIND, "pods\n127.0.0.1:22999").numbers[0], 2);
}

#[test]
fn a_server_of_the_same_name_keeps_its_cell() {
    let (registry, counts) = counts();
    for n in 1..=700u16 {
        // Another configuration has another server of this name, while others go.
        let pod = group("pods", 1..2);
        counts.of(&pod, &asked(&pod)).unwrap().cell().add(0, 1);
        let gone = group("gone", n..n + 1);
        counts.of(&gone, &asked(&gone)).unwrap();
        assert_eq!(registry.counted().of(KIND, "pods\n127.0.0.1:1").numbers[0], u64::from(n));
    }
}

fn rows(groups: &[Arc<Group>], registry: Registry, at_a_time: usize) -> String {
    fn values(counted: Counted) -> Vec<(&'static str, MetricValue)> {
        vec![("received", MetricValue::Number(counted.numbers[0]))]
    }
    let all = registry.counted();
    let (mut page, detail) = (MetricsPage::new(), ServerDetail::of(groups.iter()));
    let table = (&UPSTREAMS, values as fn(Counted) -> _);
    let mut rows = ServerRows::new(groups.iter(), (&all, KIND), Instant::now(), table, detail);
    while rows.more(at_a_time, &mut page) {}
    page.text(PageForm::Json)
}

#[test]
fn many_servers_are_shown_as_groups() {
    let (registry, counts) = counts();
    let groups = [group("few", 1..3), group("many", 1000..1999)];
    for state in groups[1].states(Instant::now()).iter().take(3) {
        let counted = counts.of(&groups[1], &state.peer).unwrap();
        counted.cell().add(0, 10);
        counted.cell().failed(1, 111);
    }
    let each = rows(&groups[..1], registry, 1);
    assert!(each.contains(r#""few":[{"server":"127.0.0.1:1","#), "{each}");
    for at_a_time in [1, 7, usize::MAX] {
        let sums = rows(&groups, registry, at_a_time);
        assert!(sums.contains(r#""few":[{"server":"(all)","weight":2,"#), "{sums}");
        let states =
            r#""state":{"untried":996,"up":0,"failing":3,"down":0,"draining":0,"total":999}"#;
        assert!(sums.contains(states) && sums.contains(r#""received":30"#), "{sums}");
    }
}
