//! Project chores, and the instrument that asks the real kernel: `guest` boots it as a process, `agent` is what
//! runs inside, `turn` is the kernel's half of a round trip.

pub mod agent;
pub mod bench;
pub mod cuts;
pub mod cycles;
pub mod damage;
pub mod datasync;
pub mod exchange;
pub mod faults;
pub mod first_run;
pub mod golden;
pub mod grub;
pub mod guest;
pub mod hostile;
pub mod kill;
pub mod mounted;
pub mod prove;
pub mod repair;
pub mod rig;
pub mod roundtrip;
pub mod scratch;
pub mod shapes;
pub mod smaller;
pub mod suites;
pub mod superblock;
pub mod through;
pub mod tree;
pub mod turn;
pub mod uring;
pub mod whole;
pub mod witness;
