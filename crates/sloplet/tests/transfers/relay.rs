//! Connections that are held up and cut.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// A relay in front of a server that holds one part of an upload back, cuts what comes down off, once, or holds it back.
pub struct Relay {
    pub address: String,
    state: Arc<State>,
}

impl Deref for Relay {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

#[derive(Default)]
pub struct State {
    /// The part that waits.
    pub held: AtomicUsize,
    /// Bytes after which the connection that they come down on is cut, once.
    pub down: Mutex<Option<usize>>,
    /// Answers that were good.
    pub good: AtomicUsize,
    pub cut: AtomicUsize,
    /// Whether it is not cut there, but waits.
    pub stalls: AtomicBool,
}

impl Relay {
    pub fn to(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, state) = (listener.local_addr().unwrap().to_string(), Arc::new(State::default()));
        let (target, shared) = (target.to_owned(), state.clone());
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(&target) else { return };
                let (near_again, far_again) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                let state = shared.clone();
                thread::spawn(move || state.pass_up(near_again, far_again));
                let state = shared.clone();
                thread::spawn(move || state.pass_down(far, near));
            }
        });
        Self { address, state }
    }
}

impl State {
    fn pass_up(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let is_held = || match self.held.load(Ordering::SeqCst) {
                0 => false,
                number => String::from_utf8_lossy(&buffer[..count]).contains(&format!("partNumber={number}&")),
            };
            while is_held() {
                thread::sleep(Duration::from_millis(5));
            }
            if to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    }

    fn pass_down(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if buffer.starts_with(b"HTTP/1.1 200") {
                self.good.fetch_add(1, Ordering::SeqCst);
            }
            let mut left = self.down.lock().unwrap();
            if let Some(most) = *left {
                if most < count {
                    *left = None;
                    drop(left);
                    self.cut.fetch_add(1, Ordering::SeqCst);
                    while self.stalls.load(Ordering::SeqCst) {
                        thread::sleep(Duration::from_millis(5));
                    }
                    break;
                }
                *left = Some(most - count);
            }
            drop(left);
            if to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    }
}

#[track_caller]
pub fn wait(what: &str, condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < Duration::from_secs(30), "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}
