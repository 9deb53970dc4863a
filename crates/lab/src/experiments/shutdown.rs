//! Ways to end a blocking accept().

use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use crate::experiment::Experiment;
use crate::finding::{FindingTable, LabFinding};
use crate::lab::Lab;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "shutdown",
    title: "close() against shutdown()",
    question: "A thread blocks in accept(). Does closing the listening socket wake it, and does \
               shutdown()?",
    published: "On Linux close() does not end a blocked accept(), which may even succeed on a socket that \
                is closed; shutdown() ends it, against POSIX.",
    run,
};

/// Longer than any wake-up takes.
const WAIT: Duration = Duration::from_millis(300);

fn run(lab: &Lab) -> Result<LabFinding, String> {
    lab.step("close() and shutdown()");
    let mut table = FindingTable::new(&["then", "the blocked accept()"]);
    let failed = |e: std::io::Error| e.to_string();

    let (handle, listener, ended) = blocked().map_err(failed)?;
    drop(handle);
    let mut finding = LabFinding::default();
    let closed = result_of(&ended);
    finding.beside("close() on the listening socket", "does not interrupt accept()", &*closed);
    table.row(&["close()".to_owned(), closed]);
    let address = listener;
    let late = TcpStream::connect(address);
    let connected =
        if late.is_ok() { "is established; accept() " } else { "is refused; accept() " };
    let after = connected.to_owned() + &result_of(&ended);
    finding.beside(
        "a connection after close()",
        "accept() may succeed on a socket that no longer exists",
        &*after,
    );
    table.row(&["a connection after close()".to_owned(), after]);

    let (handle, _, ended) = blocked().map_err(failed)?;
    rustix::net::shutdown(&handle, rustix::net::Shutdown::Read).map_err(|e| e.to_string())?;
    let shut = result_of(&ended);
    finding.beside("shutdown()", "interrupts it, against POSIX", &*shut);
    table.row(&["shutdown()".to_owned(), shut]);
    finding.because(
        "This is the kernel's doing and does not depend on the machine; a difference would be news about this kernel.",
    );
    finding.table("outcomes", &table);
    finding.remark(
        "The blocked call holds the socket: closing a descriptor of it takes the name away, not the socket. \
         weir's acceptors wait for a connection or for the order to stop, whichever comes first, and \
         need neither. (The descriptor that is closed here is a duplicate of the one in the call.)",
    );
    Ok(finding)
}

type AcceptResult = Receiver<std::io::Result<()>>;

/// Starts a thread that blocks in accept(). Returns another descriptor of its socket, the address,
/// and the channel that receives the result of the call.
fn blocked() -> std::io::Result<(TcpListener, std::net::SocketAddr, AcceptResult)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let (other, address) = (listener.try_clone()?, listener.local_addr()?);
    let (sender, ended) = channel();
    let (ready, begins) = channel();
    std::thread::spawn(move || {
        let _ = ready.send(());
        let end = listener.accept().map(|(stream, _)| {
            let _ = stream.shutdown(Shutdown::Both);
        });
        let _ = sender.send(end);
    });
    let _ = begins.recv();
    // This thread cannot see whether the other one is in accept() yet.
    let _ = ended.recv_timeout(WAIT);
    Ok((other, address, ended))
}

fn result_of(ended: &AcceptResult) -> String {
    match ended.recv_timeout(WAIT) {
        Ok(Ok(())) => "returns a connection".to_owned(),
        Ok(Err(e)) => format!("fails: {e}"),
        Err(RecvTimeoutError::Timeout) => "goes on blocking".to_owned(),
        Err(RecvTimeoutError::Disconnected) => "has returned before".to_owned(),
    }
}
