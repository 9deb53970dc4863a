//! What a team keeps whatever its loops and clients do: each request is answered once and in its order, by the loop that
//! has the connection then; and who is not held up keeps what it has.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::Duration;

use proptest::prelude::*;

use super::tests::wait;
use super::{Relief, Team};
use crate::tests::site::Site;
use crate::{Chain, Handle, Idle, Remote, Stream, Wake};

const LOOPS: usize = 3;
const CONNECTIONS: usize = 9;
/// A request is a byte: its number and, in this bit, whether its handler holds its loop up.
const HOLDS: u8 = 0x80;
/// For so long.
const HELD: Duration = Duration::from_micros(900);
/// How long a connection keeps its task: some of the pauses between requests are longer.
const GRACE: Duration = Duration::from_millis(2);

/// Who served which request of which connection.
type Served = Arc<Mutex<Vec<(usize, u8, ThreadId)>>>;

#[derive(Clone)]
struct Kept {
    connection: usize,
    served: Served,
}

impl Idle for Kept {
    fn resume(self: Box<Self>, h: &Handle, stream: Stream, why: Wake) {
        if why == Wake::Ready {
            h.spawn(serve(stream, *self));
        }
    }
}

async fn serve(stream: Stream, kept: Kept) {
    loop {
        let (n, buf) = stream.recv(Vec::with_capacity(64)).await;
        if !matches!(n, Ok(n) if n > 0) {
            return;
        }
        for request in &buf {
            let by = thread::current().id();
            kept.served.lock().unwrap().push((kept.connection, *request, by));
            if request & HOLDS != 0 {
                wait(HELD);
            }
        }
        let mut chain = Chain::new();
        chain.push(buf);
        if stream.send(&mut chain).await.is_err() {
            return;
        }
        match stream.rest_offered(GRACE, Box::new(kept.clone())).await {
            Some((Wake::Ready, _)) => {}
            Some((_, idle)) => return stream.handle().clone().park(stream, idle, None),
            None => return,
        }
    }
}

/// A loop that numbers its connections from `first`.
fn start(team: Team, first: usize, served: Served) -> (SocketAddr, Remote, JoinHandle<Relief>) {
    let (tell, told) = mpsc::channel();
    let thread = thread::spawn(move || {
        let mut site = Site::with_team(team);
        tell.send((site.address, site.h.remote())).unwrap();
        let next = std::cell::Cell::new(first);
        site.serve(|_, stream| {
            let connection = next.replace(next.get() + 1);
            serve(stream, Kept { connection, served: Arc::clone(&served) })
        });
        assert_eq!(site.h.panics(), 0);
        site.h.relief()
    });
    let (address, remote) = told.recv().unwrap();
    (address, remote, thread)
}

/// What a client does: so many requests at once, some of which hold their loop up, and whether it pauses then.
type Bursts = Vec<(Vec<bool>, bool)>;

/// The requests of all its bursts, in their order.
fn requests(bursts: &Bursts) -> Vec<Vec<u8>> {
    let mut numbers = (0..HOLDS).cycle();
    let request = |holds: &bool| numbers.next().unwrap_or(0) | if *holds { HOLDS } else { 0 };
    let mut request = request;
    bursts.iter().map(|(burst, _)| burst.iter().map(&mut request).collect()).collect()
}

/// Each client asks, and is answered by the same bytes. What was served then, and how many connections were taken.
fn play(clients: &[Bursts]) -> (Vec<(usize, u8, ThreadId)>, u64) {
    let team = Team::new(LOOPS).unwrap();
    let served = Served::default();
    let each = CONNECTIONS / LOOPS;
    let start = |i: usize| start(team.clone(), i * each, Arc::clone(&served));
    let loops: Vec<_> = (0..LOOPS).map(start).collect();
    thread::scope(|scope| {
        for (number, bursts) in clients.iter().enumerate() {
            // One after another, since the loop numbers them as they come.
            let mut socket = TcpStream::connect(loops[number / each].0).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            scope.spawn(move || {
                for ((_, pauses), burst) in bursts.iter().zip(requests(bursts)) {
                    socket.write_all(&burst).unwrap();
                    let mut back = vec![0; burst.len()];
                    socket.read_exact(&mut back).unwrap();
                    assert_eq!(back, burst);
                    if *pauses {
                        wait(2 * GRACE);
                    }
                }
            });
        }
    });
    let ends = loops.into_iter().map(|(_, remote, thread)| {
        remote.post(Box::new(Handle::stop));
        thread.join().unwrap().taken
    });
    let taken = ends.sum();
    let served = std::mem::take(&mut *served.lock().unwrap());
    (served, taken)
}

/// How often a connection was served by another loop than before.
fn moves(served: &[(usize, u8, ThreadId)]) -> usize {
    let of = |connection| served.iter().filter(move |one| one.0 == connection).map(|one| one.2);
    let moves = |connection| of(connection).zip(of(connection).skip(1)).filter(|(a, b)| a != b);
    (0..CONNECTIONS).map(|connection| moves(connection).count()).sum()
}

fn bursts(holds: f64) -> impl Strategy<Value = Bursts> {
    let burst = prop::collection::vec(prop::bool::weighted(holds), 1..4);
    prop::collection::vec((burst, prop::bool::weighted(0.1)), 1..25)
}

fn clients(holds: f64) -> impl Strategy<Value = Vec<Bursts>> {
    prop::collection::vec(bursts(holds), CONNECTIONS..=CONNECTIONS)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_request_is_answered_once_and_in_its_order(clients in clients(0.2)) {
        let (served, taken) = play(&clients);
        for (number, bursts) in clients.iter().enumerate() {
            let own = served.iter().filter(|one| one.0 == number).map(|one| one.1);
            prop_assert_eq!(own.collect::<Vec<_>>(), requests(bursts).concat());
        }
        // Who was taken is served by who took it; its end may be taken, too.
        prop_assert!(moves(&served) as u64 <= taken);
        // For a request it moves once at most.
        prop_assert!(taken as usize <= clients.iter().map(|bursts| bursts.len() + 1).sum());
    }

    /// However few processors there are.
    #[test]
    fn who_is_not_held_up_keeps_what_it_has(clients in clients(0.0)) {
        let (served, _) = play(&clients);
        let (moves, all) = (moves(&served), served.len());
        prop_assert!(moves * 10 <= all, "{} moves, {} requests", moves, all);
    }
}
