//! Receiving and sending, deadlines, and peers that close.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{Shutdown, UdpSocket};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;
use std::{io, thread};

use super::{StopAtEnd, client, receive, send};
use crate::ready::Ready;
use crate::tests::site::Site;
use crate::{BackendKind, Chain, ConnectOptions, Either, Patience, either};

pub(crate) fn an_echo_comes_back(kind: BackendKind) {
    let mut site = Site::new(kind);
    let play = client(&site, |mut socket| {
        for round in 0..100u8 {
            socket.write_all(&[round; 300]).unwrap();
            let mut back = [0; 300];
            socket.read_exact(&mut back).unwrap();
            assert_eq!(back, [round; 300]);
        }
    });
    site.serve(|_, stream| async move {
        while let Ok(bytes) = receive(&stream).await {
            if bytes.is_empty() || send(&stream, bytes).await.is_err() {
                break;
            }
        }
    });
    play.join().unwrap();
}

pub(crate) fn what_is_there_needs_no_event(kind: BackendKind) {
    let mut site = Site::new(kind);
    let mut socket = site.client();
    socket.write_all(b"there").unwrap();
    let events = Cell::new(0);
    site.serve_turns(
        |h, stream| async move {
            let mut buf = h.take_buf(100);
            assert_eq!(stream.try_recv(&mut buf).unwrap(), Some(5));
            send(&stream, buf).await.unwrap();
            h.stop();
        },
        |turn| events.set(events.get() + turn.events),
    );
    assert_eq!(events.get(), 1, "the listening socket's");
    let mut back = Vec::new();
    socket.read_to_end(&mut back).unwrap();
    assert_eq!(back, b"there");
}

/// A backend may refuse a socket for lack of memory. No event would come then, and a task that
/// waits must not be woken in an endless loop.
pub(crate) fn a_refused_socket_reports_an_error(kind: BackendKind) {
    let mut site = Site::new(kind);
    let _socket = site.client();
    site.serve(|h, stream| async move {
        stream.0.source.mark(Ready::ERR);
        let (received, _) = stream.recv(h.take_buf(100)).await;
        assert_eq!(received.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
        // The peer does not read, so sends fill the buffers.
        let mut sent = Ok(());
        while sent.is_ok() {
            sent = send(&stream, vec![0; 1 << 20]).await;
        }
        assert_eq!(sent.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
        h.stop();
    });
}

/// A receive of all bytes that are there does not show that the socket is empty.
pub(crate) fn what_was_received_does_not_arrive_again(kind: BackendKind) {
    let mut site = Site::new(kind);
    let play = client(&site, |mut socket| {
        socket.write_all(b"x").unwrap();
        let mut back = [0];
        socket.read_exact(&mut back).unwrap();
        socket.write_all(b"z").unwrap();
        assert_eq!(socket.read(&mut back).unwrap(), 0);
    });
    site.serve(|h, stream| async move {
        let (received, buf) = stream.recv(Vec::with_capacity(1)).await;
        assert_eq!((received.unwrap(), buf.capacity()), (1, 1));
        let first = either(pin!(stream.arrived()), h.sleep(Duration::from_millis(5))).await;
        assert!(matches!(first, Either::Right(())), "nothing has come");
        send(&stream, b"y".to_vec()).await.unwrap();
        stream.arrived().await.unwrap();
        assert_eq!(receive(&stream).await.unwrap(), b"z");
    });
    play.join().unwrap();
}

pub(crate) fn what_comes_later_is_reported(kind: BackendKind) {
    let mut site = Site::new(kind);
    let (asked, told) = std::sync::mpsc::channel();
    let play = client(&site, move |mut socket| {
        told.recv().unwrap();
        socket.write_all(b"late").unwrap();
        assert_eq!(socket.read(&mut [0; 10]).unwrap(), 4);
    });
    site.serve(move |h, stream| {
        let asked = asked.clone();
        async move {
            let mut buf = h.take_buf(100);
            assert_eq!(stream.try_recv(&mut buf).unwrap(), None);
            asked.send(()).unwrap();
            let bytes = receive(&stream).await.unwrap();
            send(&stream, bytes).await.unwrap();
        }
    });
    play.join().unwrap();
    assert_eq!(site.h.panics(), 0);
}

pub(crate) fn a_long_answer_arrives_whole(kind: BackendKind) {
    const PARTS: usize = 40;
    const PART: usize = 200_000;
    let mut site = Site::new(kind);
    let play = client(&site, |mut socket| {
        let mut all = Vec::new();
        socket.read_to_end(&mut all).unwrap();
        assert_eq!(all.len(), PARTS * PART);
        let right = all.chunks(PART).enumerate().all(|(i, p)| p.iter().all(|b| *b == i as u8));
        assert!(right);
    });
    site.serve(|_, stream| async move {
        let mut chain = Chain::new();
        for part in 0..PARTS {
            chain.push(vec![part as u8; PART]);
        }
        stream.send(&mut chain, Patience::Watched).await.unwrap();
        assert!(chain.is_empty());
    });
    play.join().unwrap();
}

pub(crate) fn half_close_is_the_end_of_the_stream_not_of_the_connection(kind: BackendKind) {
    let mut site = Site::new(kind);
    let play = client(&site, |mut socket| {
        socket.write_all(b"question").unwrap();
        socket.shutdown(Shutdown::Write).unwrap();
        let mut all = Vec::new();
        socket.read_to_end(&mut all).unwrap();
        assert_eq!(all, b"answer");
    });
    site.serve(|_, stream| async move {
        let mut question = Vec::with_capacity(4096);
        loop {
            let (n, buf) = stream.recv(question).await;
            question = buf;
            if n.unwrap() == 0 {
                break;
            }
        }
        assert_eq!(question, b"question");
        // Each further receive reports the end again.
        assert_eq!(receive(&stream).await.unwrap(), b"");
        send(&stream, &b"answer"[..]).await.unwrap();
        stream.shutdown_write().unwrap();
    });
    play.join().unwrap();
    assert_eq!(site.h.panics(), 0);
}

pub(crate) fn a_departed_peer_is_noticed(kind: BackendKind) {
    let mut site = Site::new(kind);
    let socket = site.client();
    let first = Rc::new(Cell::new(Some(socket)));
    site.serve(move |h, stream| {
        let peer = first.take();
        async move {
            // A task does other work while the client leaves.
            let leave = async {
                h.sleep(Duration::from_millis(1)).await;
                drop(peer);
                std::future::pending::<()>().await;
            };
            assert!(!stream.peek_closed());
            let first = either(stream.closed(), leave).await;
            assert!(matches!(first, Either::Left(Ok(()))));
            assert!(stream.peek_closed());
            h.stop();
        }
    });
    assert_eq!(site.h.panics(), 0);
}

pub(crate) fn a_deadline_ends_a_wait(kind: BackendKind) {
    let mut site = Site::new(kind);
    let _silent = site.client();
    site.serve(|h, stream| async move {
        stream.set_deadline(Some(h.now() + Duration::from_millis(5)));
        let error = receive(&stream).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(stream.closed().await.is_err());
        // Operations that need not wait still succeed.
        send(&stream, &b"late"[..]).await.unwrap();
        // A new deadline allows waiting again.
        let began = h.now();
        stream.set_timeout(Some(Duration::from_millis(3)));
        assert_eq!(receive(&stream).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(h.now() - began >= Duration::from_millis(3));
        h.stop();
    });
    assert_eq!(site.h.panics(), 0);
}

pub(crate) fn a_deadline_that_moves_later_does_not_fire(kind: BackendKind) {
    let mut site = Site::new(kind);
    let socket = site.client();
    site.serve(move |h, stream| {
        let mut socket = socket.try_clone().unwrap();
        async move {
            stream.set_deadline(Some(h.now() + Duration::from_millis(2)));
            stream.set_deadline(Some(h.now() + Duration::from_secs(600)));
            assert_eq!(h.0.wheel.borrow().len(), 1);
            let answer = either(receive(&stream), h.sleep(Duration::from_millis(8))).await;
            assert!(matches!(answer, Either::Right(())), "the old deadline fired");
            assert_eq!(h.0.wheel.borrow().len(), 1, "the timer has moved on, not multiplied");
            socket.write_all(b"x").unwrap();
            assert_eq!(receive(&stream).await.unwrap(), b"x");
            drop(stream);
            assert_eq!(h.0.wheel.borrow().len(), 0);
            h.stop();
        }
    });
    assert_eq!(site.h.panics(), 0);
}

pub(crate) fn connecting_and_being_refused(kind: BackendKind) {
    let mut site = Site::new(kind);
    let (h, address) = (site.h.clone(), site.address);
    site.h.spawn(async move {
        let how = ConnectOptions {
            bind: Some("127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into()),
            deadline: Some(h.now() + Duration::from_secs(10)),
            ..ConnectOptions::default()
        };
        let stream = h.connect(&address.into(), &how).await.unwrap();
        send(&stream, &b"ping"[..]).await.unwrap();
        assert_eq!(receive(&stream).await.unwrap(), b"ping");
        assert_eq!(rustix::net::getpeername(&stream).unwrap(), Some(address.into()));
        // A port without a listener: bound, then closed.
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let refused = h.connect(&nobody.into(), &ConnectOptions::default()).await;
        assert_eq!(refused.err().unwrap().kind(), io::ErrorKind::ConnectionRefused);
        let missing = rustix::net::SocketAddrUnix::new("/nonexistent/socket").unwrap();
        let missing = h.connect(&missing.into(), &ConnectOptions::default()).await;
        assert_eq!(missing.err().unwrap().kind(), io::ErrorKind::NotFound);
        h.stop();
    });
    site.serve(|_, stream| async move {
        let bytes = receive(&stream).await.unwrap();
        send(&stream, bytes).await.unwrap();
        receive(&stream).await.unwrap();
    });
    assert_eq!(site.h.panics(), 0);
}

pub(crate) fn datagrams_come_and_go(kind: BackendKind) {
    let mut site = Site::new(kind);
    let ours = UdpSocket::bind("127.0.0.1:0").unwrap();
    ours.set_nonblocking(true).unwrap();
    let (peer, address) = (UdpSocket::bind("127.0.0.1:0").unwrap(), ours.local_addr().unwrap());
    let play = {
        let remote = StopAtEnd(site.h.remote());
        thread::spawn(move || {
            for n in 0..20u8 {
                peer.send_to(&[n; 30], address).unwrap();
                let mut back = [0; 100];
                let (len, from) = peer.recv_from(&mut back).unwrap();
                assert_eq!((&back[..len], from), (&[n; 30][..], address));
            }
            drop(remote);
        })
    };
    let socket = site.h.datagram(ours.into()).unwrap();
    site.h.spawn(async move {
        loop {
            std::future::poll_fn(|cx| socket.poll_readable(cx)).await.unwrap();
            let mut buf = Vec::with_capacity(512);
            let Some(received) = socket.try_recv_from(&mut buf).unwrap() else { continue };
            socket.send_to(&buf, received.from.as_ref()).await.unwrap();
        }
    });
    site.run();
    play.join().unwrap();
}
