//! The driver.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use sloplet_client::wire::{Exec, Target};
use sloplet_client::{Agent, Connection, Process};
use sloplet_driver_namespaces::{Namespaces, disk};
use sloplet_engine::driver::When;
use sloplet_engine::{Adopted, Adoption, Driver, DriverError, Machine, Overdue, Pending, PutFile, Wanted};
use sloplet_image::Image;
use sloplet_policy::{Capability, DriverReport, Isolation, Spec};
use sloplet_spawner::lease::MACHINES;

use crate::boot::{self, Boot};
use crate::disks::{self, Disks};
use crate::living::{self, Note};
use crate::machine::{self, Emulated, QEMU_TAG, dial};
use crate::saved::{self, Record};
use crate::talk::{Answer, Ask, Order};
use crate::{cache, failed, guest, kernel, outer, qcow2, qemu, relay, report, talk};

/// Makes sandboxes out of virtual machines.
pub struct Vm {
    program: PathBuf,
    data_dir: PathBuf,
    outer: Namespaces,
    report: OnceLock<DriverReport>,
}

/// All that a machine is made of.
struct Parts {
    qemu: PathBuf,
    root: PathBuf,
    boot: Boot,
    empty: PathBuf,
    disks: Disks,
}

impl Vm {
    /// A driver whose machines boot `program`, a binary with the spawner's and the guest's subcommand.
    pub fn new(program: &Path, run_dir: &Path, data_dir: &Path) -> Self {
        // A folder of its own: what is found there by the next engine are machines.
        let mut name = run_dir.file_name().unwrap_or_default().to_owned();
        name.push(MACHINES);
        Self {
            program: program.to_owned(),
            data_dir: data_dir.to_owned(),
            outer: Namespaces::new(program, &run_dir.with_file_name(name), data_dir, 1),
            report: OnceLock::new(),
        }
    }

    /// The same driver, whose machines can outlive the engine.
    pub fn lasting(self) -> Self {
        Self { outer: self.outer.lasting(), ..self }
    }

    /// Makes what is missing; takes a while the first time.
    async fn provide(&self, image: &Image, spec: &Spec, saved: bool) -> Result<Parts, DriverError> {
        let (program, data_dir, image, spec) =
            (self.program.clone(), self.data_dir.clone(), image.clone(), spec.clone());
        let made = tokio::task::spawn_blocking(move || {
            if let Some(reason) = report::missing(&data_dir) {
                return Err(failed("start a virtual machine", reason));
            }
            let qemu = qemu::find().ok_or_else(|| failed("find QEMU", qemu::REMEDY))?;
            Ok(Parts {
                // A saved machine has its own.
                disks: if saved { Disks::default() } else { disks::provide(&data_dir, &image, &spec)? },
                root: qemu::provide_root(&data_dir, &qemu)?,
                qemu,
                boot: boot::provide(&data_dir, &kernel::find(&data_dir)?, &program)?,
                empty: disk::empty(&data_dir, &spec.limits)?,
            })
        });
        made.await.map_err(|error| failed("make the parts of a machine", error))?
    }

    async fn bring_up(&self, wanted: Wanted<'_>, lasting: bool) -> Result<Box<dyn Machine>, DriverError> {
        let parts = self.provide(wanted.image, wanted.spec, wanted.memory.is_some()).await?;
        let (record, from) = match wanted.memory {
            Some(folder) => {
                let saved = Record::read(folder)?;
                let from = if saved.private_memory { qemu::From::State } else { qemu::From::Memory };
                let private_memory = from == qemu::From::Memory;
                (Record { private_memory, disks_below: saved.disks_below + 1, ..saved }, from)
            }
            None => {
                let record = Record {
                    memory: outer::guest_memory(&wanted.spec.limits, &parts.boot),
                    cpus: outer::cpus(&wanted.spec.limits),
                    boot: parts.boot.folder.clone(),
                    empty: parts.empty.clone(),
                    disks: outer::disk_names(&parts.disks),
                    password: relay::password().map_err(|error| failed("draw a password", error))?,
                    private_memory: false,
                    disks_below: 0,
                };
                (record, qemu::From::Boot)
            }
        };
        let spec = outer::spec(wanted.spec, &record, wanted.memory);
        let image = outer::image(&parts.root);
        let outside =
            Wanted { id: wanted.id, spec: &spec, image: &image, egress: wanted.egress, files: &[], memory: None };
        let machine = match lasting {
            true => self.outer.create_lasting(outside).await?,
            false => self.outer.create(outside).await?,
        };
        let begun = tokio::time::timeout(outer::START, begin(&*machine, wanted, &parts, &record, from)).await;
        let begun = begun.unwrap_or_else(|_| {
            let detail = format!("its agent did not answer within {} s", outer::START.as_secs());
            Err(failed("start the virtual machine", detail))
        });
        let begun = match begun {
            // Its time begins when something can run in it.
            Ok(begun) => {
                machine.set_deadline(Some(wanted.spec.limits.timeout.0), Overdue::Destroy).await.map(|()| begun)
            }
            error => error,
        };
        let note = Note::of(&self.data_dir, wanted.id);
        let begun = begun.and_then(|begun| match (lasting, machine.pid()) {
            (true, Some(pid)) => {
                let noted = note.write(pid, &record);
                noted.map(|()| begun).map_err(|error| failed("write down what the machine is made of", error))
            }
            _ => Ok(begun),
        });
        match begun {
            Ok((agent, process, control)) => {
                Ok(Box::new(Emulated::new(machine, agent, process, control, record, note)))
            }
            Err(error) => {
                let _ = machine.destroy().await;
                Err(error)
            }
        }
    }

    async fn take_over(&self) -> Result<Adoption, DriverError> {
        let mut found = self.outer.adopt().await?;
        let living = std::mem::take(&mut found.living);
        for Adopted { id, machine, frozen, age } in living {
            let note = Note::of(&self.data_dir, &id);
            found.living.push(Adopted { id, machine: Box::new(Emulated::adopted(machine, frozen, note)), frozen, age });
        }
        Ok(found)
    }
}

type Begun = (Agent, Process, Connection);

/// Starts QEMU in its sandbox, and the sandbox in the machine; or lets a saved one go on.
async fn begin(
    machine: &dyn Machine,
    wanted: Wanted<'_>,
    parts: &Parts,
    record: &Record,
    from: qemu::From,
) -> Result<Begun, DriverError> {
    let step = "start QEMU in its sandbox";
    let agent = Agent::connect(machine.connect().await?).await.map_err(|error| failed(step, error))?;
    let (below, format) = match record.disks_below.checked_sub(1) {
        Some(number) => (format!("{}/{}", outer::SAVED, saved::disk(number)), "qcow2"),
        None => (outer::EMPTY.to_owned(), "raw"),
    };
    let disk = qcow2::overlay(wanted.spec.limits.disk.0, &below, format);
    let target = Target { path: outer::DISK.as_bytes().to_vec().into(), ..Target::default() };
    let mut upload = agent.write(target, 0o600, false).await.map_err(|error| failed(step, error))?;
    upload.write(disk).await.map_err(|error| failed(step, error))?;
    upload.finish().await.map_err(|error| failed(step, error))?;
    let disks: Vec<(String, String)> =
        record.disks.iter().map(|(name, _)| (name.clone(), outer::place(name))).collect();
    let start = qemu::Start {
        memory: record.memory,
        cpus: record.cpus,
        disks: &disks,
        disk: outer::DISK,
        kernel: &format!("{}/{}", outer::BOOT, boot::KERNEL),
        initrd: &format!("{}/{}", outer::BOOT, boot::INITRD),
        from,
    };
    let (input, library) = match from {
        qemu::From::Boot => ("-".into(), "-".into()),
        qemu::From::State => (format!("{}/{}", outer::SAVED, saved::STATE), "-".into()),
        qemu::From::Memory => (format!("{}/{}", outer::SAVED, saved::STATE), format!("{}/{}", outer::BOOT, boot::SHIM)),
    };
    let mut words = vec![
        format!("{}/{}", outer::BOOT, boot::HELPER),
        guest::SUBCOMMAND.into(),
        relay::WORD.into(),
        record.password.clone(),
        input,
        library,
    ];
    words.extend(qemu::arguments(&parts.qemu, &start));
    let argv = words.into_iter().map(|word| word.into_bytes().into()).collect();
    let exec = Exec {
        argv,
        env: vec![b"PATH=/usr/bin".to_vec().into()],
        cwd: Some(b"/tmp".to_vec().into()),
        background: true,
        tag: Some(QEMU_TAG.into()),
        ..Exec::default()
    };
    let mut process = agent.exec(exec).await.map_err(|error| failed(step, error))?;
    let talked = async {
        if wanted.memory.is_some() {
            saved::restore(&agent, from == qemu::From::Memory).await?;
        }
        let mut control = dial(&agent, qemu::CONTROL_PORT).await?;
        if wanted.memory.is_none() {
            talk::send(&mut control, &Ask::Begin(Box::new(order(wanted, parts)))).await?;
            match talk::receive(&mut control).await? {
                Answer::Done => {}
                Answer::Failed { detail, .. } => return Err(std::io::Error::other(shorten(&detail))),
                _ => return Err(std::io::Error::other("the guest gave an odd answer")),
            }
        }
        // The time and the like: what was said above waited for the guest to boot; this does not.
        let identity = (wanted.spec.hostname.clone(), wanted.files.iter().map(translate).collect());
        let own = machine::own(wanted.memory.map(|_| identity))?;
        talk::send(&mut control, &Ask::Resume(own)).await?;
        match talk::receive(&mut control).await? {
            Answer::Done => Ok(control),
            Answer::Failed { detail, .. } => Err(std::io::Error::other(shorten(&detail))),
            _ => Err(std::io::Error::other("the guest gave an odd answer")),
        }
    };
    tokio::select! {
        talked = talked => match talked {
            Ok(control) => Ok((agent, process, control)),
            Err(error) => Err(failed("bring up the sandbox in the machine", error)),
        },
        said = machine::last_words(&mut process) => Err(failed("start the virtual machine", shorten(&said))),
    }
}

/// One line of what a guest said, without anything that could steer a terminal.
pub(crate) fn shorten(text: &str) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let plain = plain.trim();
    let cut = plain.char_indices().rev().nth(400).map_or(0, |(at, _)| at);
    plain[cut..].to_owned()
}

fn order(wanted: Wanted<'_>, parts: &Parts) -> Order {
    Order {
        id: wanted.id.to_owned(),
        spec: wanted.spec.clone(),
        layers: parts.disks.layers.len(),
        system: wanted.image.binds.iter().map(|bind| bind.source.display().to_string()).collect(),
        mounts: parts.disks.mounts.iter().map(|(_, name)| name.clone()).collect(),
        config: wanted.image.config.clone(),
        egress: wanted.egress,
        files: wanted.files.iter().map(translate).collect(),
    }
}

fn translate(file: &PutFile) -> talk::PutFile {
    let word = |when: &When| match when {
        When::Always => "always",
        When::Absent => "absent",
        When::Present => "present",
    };
    talk::PutFile {
        places: file.places.iter().map(|(path, when)| (path.clone(), word(when).to_owned())).collect(),
        content: file.content.iter().map(|byte| format!("{byte:02x}")).collect(),
        after: file.after.clone(),
        mode: file.mode,
    }
}

impl Driver for Vm {
    fn name(&self) -> &'static str {
        "vm"
    }

    fn isolation(&self) -> Isolation {
        Isolation::Vm
    }

    fn report(&self) -> DriverReport {
        self.report.get_or_init(|| report::probe(&self.data_dir, &self.outer)).clone()
    }

    fn egress(&self) -> Capability {
        report::egress(&self.data_dir, self.outer.egress())
    }

    /// The rules for it take the guest's slow processor a while.
    fn spares_outlets(&self) -> bool {
        false
    }

    fn create<'a>(&'a self, wanted: Wanted<'a>) -> Pending<'a, Result<Box<dyn Machine>, DriverError>> {
        Box::pin(self.bring_up(wanted, false))
    }

    fn create_lasting<'a>(&'a self, wanted: Wanted<'a>) -> Pending<'a, Result<Box<dyn Machine>, DriverError>> {
        Box::pin(self.bring_up(wanted, true))
    }

    fn adopt(&self) -> Pending<'_, Result<Adoption, DriverError>> {
        Box::pin(self.take_over())
    }

    fn collect(&self) -> Result<usize, DriverError> {
        Ok(self.outer.collect()? + cache::collect(&self.data_dir) + living::collect(&self.data_dir))
    }

    fn shut_down(&self) {
        self.outer.shut_down();
    }
}
