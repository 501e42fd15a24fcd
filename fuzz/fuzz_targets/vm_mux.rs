//! What a virtual machine says over its one port, cut anywhere: streams open and end, or the port is given up.

use sloplet_driver_vm::mux::{Mux, Side};
use sloplet_wire::{Kind, frame};
use tokio::sync::mpsc;

use crate::{Target, support};

pub const TARGET: Target = Target { run, seeds, words: &["agent", "dial 80", "egress"], longest: 2048 };

fn run(bytes: &[u8]) {
    let Some((size, said)) = support::pieces(bytes) else { return };
    support::within_runtime(async move {
        let (sender, incoming) = mpsc::channel(1);
        let (outgoing, mut out) = mpsc::unbounded_channel();
        let (opened, mut openings) = mpsc::unbounded_channel();
        let mux = Mux::start(Side::Host, incoming, outgoing, opened);
        let own = mux.open("agent");
        for piece in said.chunks(size) {
            if sender.send(piece.to_vec()).await.is_err() {
                break;
            }
        }
        drop(sender);
        tokio::task::yield_now().await;
        let mut held = Vec::new();
        while let Ok(one) = openings.try_recv() {
            assert!(one.purpose.len() <= 4096);
            held.push(one);
        }
        assert!(held.len() <= 512, "{} streams", held.len());
        drop((own, held, mux));
        while out.try_recv().is_ok() {}
    });
}

fn seeds() -> Vec<Vec<u8>> {
    let frame = |kind: Kind, id: u32, payload: &[u8]| {
        let mut out = Vec::new();
        frame::encode(&mut out, kind, id, 0, payload);
        out
    };
    let all = [
        frame(Kind::Request, 2, b"dial 80"),
        frame(Kind::Data, 1, b"data"),
        frame(Kind::Data, 2, b"more"),
        frame(Kind::Window, 1, &1000u32.to_le_bytes()),
        frame(Kind::End, 2, b""),
        frame(Kind::Reset, 1, b""),
    ];
    support::in_pieces(vec![all.concat(), all[..3].concat(), all[3..].concat()])
}
