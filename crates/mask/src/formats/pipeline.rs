//! Pieces of a file, worked on side by side and written in their order.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use crate::MaskError;

/// Whole records, and the line of the file on which they begin.
pub struct Piece {
    /// The records.
    pub bytes: Vec<u8>,
    /// Counted from one.
    pub line: u64,
}

/// Pieces waiting for each worker.
const WAITING: usize = 2;

type Done = Result<Vec<u8>, MaskError>;

/// Reads pieces in one thread, works on them in as many as there are workers, and writes here. Memory holds a few pieces.
/// Returns the workers, with what they counted.
pub fn run<W, R>(
    workers: Vec<W>,
    mut read: R,
    work: impl Fn(&mut W, Piece) -> Done + Sync,
    mut write: impl FnMut(&[u8]) -> Result<(), MaskError>,
) -> Result<Vec<W>, MaskError>
where
    W: Send,
    R: FnMut() -> Result<Option<Piece>, MaskError> + Send,
{
    thread::scope(|scope| {
        let work = &work;
        let (mut inlets, mut outlets, mut threads) = (Vec::new(), Vec::new(), Vec::new());
        for mut worker in workers {
            let (inlet, pieces): (SyncSender<Result<Piece, MaskError>>, Receiver<_>) = sync_channel(WAITING);
            let (results, outlet): (SyncSender<Done>, _) = sync_channel(WAITING);
            inlets.push(inlet);
            outlets.push(outlet);
            threads.push(scope.spawn(move || {
                for piece in pieces {
                    let done = piece.and_then(|piece| work(&mut worker, piece));
                    if results.send(done).is_err() {
                        break; // the writer gave up
                    }
                }
                worker
            }));
        }
        scope.spawn(move || {
            for inlet in inlets.iter().cycle() {
                let piece = read();
                let last = !matches!(piece, Ok(Some(_)));
                if let Some(piece) = piece.transpose()
                    && inlet.send(piece).is_err()
                {
                    break;
                }
                if last {
                    break;
                }
            }
        });
        // Pieces were dealt in turn, so they are collected in turn.
        let mut outcome = Ok(());
        for outlet in outlets.iter().cycle() {
            match outlet.recv() {
                Ok(Ok(bytes)) => outcome = write(&bytes),
                Ok(Err(error)) => outcome = Err(error),
                Err(_) => break,
            }
            if outcome.is_err() {
                break;
            }
        }
        drop(outlets);
        let workers =
            threads.into_iter().map(|thread| thread.join().map_err(|_| MaskError::malformed(0, "a worker died")));
        let workers = workers.collect::<Result<Vec<W>, _>>();
        outcome.and(workers)
    })
}
