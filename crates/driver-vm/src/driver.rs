//! The driver.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use sloplet_client::{Agent, Connection, Process};
use sloplet_driver_namespaces::{Namespaces, disk};
use sloplet_engine::driver::When;
use sloplet_engine::{Adopted, Adoption, Driver, DriverError, Machine, Overdue, Pending, PutFile, Wanted};
use sloplet_image::Image;
use sloplet_policy::devices::Shown;
use sloplet_policy::{Capability, DriverReport, Isolation, Spec};
use sloplet_sys::private::MACHINES;

use crate::accel::{self, Accel};
use crate::boot::{self, Boot};
use crate::booted::Ahead;
use crate::disks::{self, Disks};
use crate::launch::launch;
use crate::living::{self, Note};
use crate::machine::{self, Emulated, dial};
use crate::qemu::Qemu;
use crate::saved::{self, Record};
use crate::talk::{Answer, Ask, Order};
use crate::{cache, failed, kernel, kvm, outer, qemu, relay, report, talk};

/// Makes sandboxes out of virtual machines.
pub struct Vm {
    program: PathBuf,
    data_dir: PathBuf,
    outer: Namespaces,
    report: OnceLock<DriverReport>,
}

/// All that a machine is made of.
struct Parts {
    qemu: Qemu,
    accel: Accel,
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
            let qemu = Qemu::provide(&data_dir)?;
            let kernel = kernel::find(&data_dir)?;
            let asked = std::env::var(accel::VARIABLE).ok();
            let accel = Accel::choose(asked.as_deref(), &kvm::known(&data_dir, &qemu.program, &kernel))
                .map_err(|why| failed("start a virtual machine", why))?;
            Ok(Parts {
                accel,
                // A saved machine has its own.
                disks: if saved { Disks::default() } else { disks::provide(&data_dir, &image, &spec)? },
                qemu,
                boot: boot::provide(&data_dir, &kernel, &program)?,
                empty: disk::empty(&data_dir, &spec.limits)?,
            })
        });
        made.await.map_err(|error| failed("make the parts of a machine", error))?
    }

    pub(crate) async fn bring_up(
        &self,
        wanted: Wanted<'_>,
        lasting: bool,
        whole: bool,
    ) -> Result<Box<dyn Machine>, DriverError> {
        let parts = self.provide(wanted.image, wanted.spec, wanted.memory.is_some()).await?;
        let (record, from, saved) = match wanted.memory {
            Some(folder) => {
                let saved = Record::read(folder)?;
                let from = if saved.private_memory { qemu::From::State } else { qemu::From::Memory };
                let private_memory = from == qemu::From::Memory;
                let record = Record { private_memory, disks_below: saved.disks_below + 1, ..saved };
                (record, from, Some(folder.to_owned()))
            }
            None => self.begin_anew(wanted, &parts, whole).await?,
        };
        let devices = self.devices(&record)?;
        let spec = outer::spec(wanted.spec, &record, saved.as_deref(), &devices);
        let image = outer::image(&parts.qemu.root);
        let outside = Wanted {
            id: wanted.id,
            spec: &spec,
            image: &image,
            egress: wanted.egress,
            files: &[],
            memory: None,
            claimable: false,
            ear: false,
        };
        let machine = match lasting {
            true => self.outer.create_lasting(outside).await?,
            false => self.outer.create(outside).await?,
        };
        let patience = outer::start_of(&record);
        let begun = tokio::time::timeout(patience, begin(&*machine, wanted, &parts, &record, from)).await;
        let begun = begun.unwrap_or_else(|_| {
            let detail = format!("its agent did not answer within {} s", patience.as_secs());
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

    /// What a new machine is made of, and where it begins: with a copy of one that was booted before, if that can be.
    async fn begin_anew(
        &self,
        wanted: Wanted<'_>,
        parts: &Parts,
        whole: bool,
    ) -> Result<(Record, qemu::From, Option<PathBuf>), DriverError> {
        let record = Record {
            accel: parts.accel,
            whole,
            memory: outer::guest_memory(&wanted.spec.limits, &parts.boot),
            cpus: outer::cpus(&wanted.spec.limits),
            boot: parts.boot.folder.clone(),
            empty: parts.empty.clone(),
            disks: outer::disk_names(&parts.disks),
            password: relay::password().map_err(|error| failed("draw a password", error))?,
            private_memory: false,
            disks_below: 0,
        };
        if !parts.boot.looks_late {
            return Ok((record, qemu::From::Boot, None));
        }
        let devices = self.devices(&record)?;
        let booted = Ahead { sandboxes: &self.outer, data_dir: &self.data_dir, qemu: &parts.qemu };
        Ok(match booted.provide(wanted, &record, &devices).await {
            Ok(folder) => (record, qemu::From::Copy, Some(folder)),
            // It can still be booted. If that fails, too, the reason is told then.
            Err(_) => (record, qemu::From::Boot, None),
        })
    }

    /// Devices of the host that QEMU needs.
    fn devices(&self, record: &Record) -> Result<Vec<Shown>, DriverError> {
        match record.accel {
            Accel::Kvm => Ok(vec![kvm::device(&self.data_dir)?]),
            Accel::Tcg => Ok(Vec::new()),
        }
    }

    async fn take_over(&self) -> Result<Adoption, DriverError> {
        let mut found = self.outer.adopt().await?;
        let living = std::mem::take(&mut found.living);
        for Adopted { id, machine, frozen, age, same_build } in living {
            let note = Note::of(&self.data_dir, &id);
            let machine = Box::new(Emulated::adopted(machine, frozen, note));
            found.living.push(Adopted { id, machine, frozen, age, same_build });
        }
        Ok(found)
    }
}

/// How long QEMU may take to end after its guest has fallen silent.
const LAST_WORDS: Duration = Duration::from_secs(2);

type Begun = (Agent, Process, Connection);

/// Starts QEMU in its sandbox, and the sandbox in the machine; or lets a saved one go on.
async fn begin(
    machine: &dyn Machine,
    wanted: Wanted<'_>,
    parts: &Parts,
    record: &Record,
    from: qemu::From,
) -> Result<Begun, DriverError> {
    let (agent, mut process) = launch(machine, &parts.qemu, record, wanted.spec.limits.disk.0, from).await?;
    let talked = async {
        if from != qemu::From::Boot {
            saved::restore(&agent, from != qemu::From::State).await?;
        }
        let mut control = dial(&agent, qemu::CONTROL_PORT).await?;
        let begin = || Ask::Begin(Box::new(order(wanted, parts)));
        let identity = || (wanted.spec.hostname.clone(), wanted.files.iter().map(translate).collect());
        match from {
            // The time is told last: what is said before waits for the guest to boot.
            qemu::From::Boot => {
                ask(&mut control, &begin()).await?;
                ask(&mut control, &Ask::Resume(machine::own(None)?)).await?;
            }
            // First of all come random numbers of its own.
            qemu::From::Copy => {
                ask(&mut control, &Ask::Resume(machine::own(None)?)).await?;
                ask(&mut control, &begin()).await?;
            }
            qemu::From::State | qemu::From::Memory => {
                ask(&mut control, &Ask::Resume(machine::own(Some(identity()))?)).await?;
            }
        }
        std::io::Result::Ok(control)
    };
    tokio::select! {
        talked = talked => match talked {
            Ok(control) => Ok((agent, process, control)),
            // If QEMU has ended, that is the reason, and it may have said why.
            Err(error) => match tokio::time::timeout(LAST_WORDS, machine::last_words(&mut process)).await {
                Ok(said) => Err(failed("start the virtual machine", shorten(&said))),
                Err(_) => Err(failed("bring up the sandbox in the machine", error)),
            },
        },
        said = machine::last_words(&mut process) => Err(failed("start the virtual machine", shorten(&said))),
    }
}

/// Asks the keeper for something that has no answer but that it is done.
async fn ask(control: &mut Connection, what: &Ask) -> std::io::Result<()> {
    talk::send(control, what).await?;
    match talk::receive(control).await? {
        Answer::Done => Ok(()),
        Answer::Failed { detail, .. } => Err(std::io::Error::other(shorten(&detail))),
        _ => Err(std::io::Error::other("the guest gave an odd answer")),
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
        Box::pin(self.bring_up(wanted, false, false))
    }

    fn create_lasting<'a>(&'a self, wanted: Wanted<'a>) -> Pending<'a, Result<Box<dyn Machine>, DriverError>> {
        Box::pin(self.bring_up(wanted, true, false))
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
