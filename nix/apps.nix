# SPDX-License-Identifier: AGPL-3.0-or-later
# What `nix run` starts: every tool by its name, and the main job as one command.
{
  pkgs,
  packages,
  kernel,
  ...
}:
let
  inherit (pkgs) lib;
  program = name: package: {
    type = "app";
    program = "${package}/bin/${name}";
  };
  exploreRaft = pkgs.writeShellApplication {
    name = "explore-raft";
    runtimeInputs = [ packages.packages.chaos-tools ];
    text = ''
      usage() {
        cat <<'TEXT'
      usage: explore-raft [options]

      Boots three nodes of a Raft with a planted bug, explores schedules of faults until the bug shows, shrinks the schedule to the
      faults that matter, replays it, and writes the receipt. Ends with what was found, for people.

        --output DIR          where the store and the descriptors go (default explore-raft)
        --bug NAME            double_vote (default), fig8_commit, skip_truncate, accept_stale_term, leader_no_stepdown,
                              premature_commit, or none
        --extra-cmdline TEXT  appended to every kernel command line, in the place of raft_bug=NAME
        --vms N               nodes (default 3)
        --seed N              seed of everything random (default 42)
        --branches N          branches at most (default 64)
        --jobs N              branches at a time (default: the number of cores)

      exit codes: those of the stage that failed; 0 also when a bug is found
      TEXT
      }
      output=explore-raft bug=double_vote cmdline="" vms=3 seed=42 branches=64 jobs=()
      while [ $# -gt 0 ]; do
        case $1 in
          --help | -h) usage; exit 0 ;;
          --output | --bug | --extra-cmdline | --vms | --seed | --branches | --jobs)
            [ $# -ge 2 ] || { echo "explore-raft: $1 needs a value" >&2; exit 2; }
            case $1 in
              --output) output=$2 ;;
              --bug) bug=$2 ;;
              --extra-cmdline) cmdline=$2 ;;
              --vms) vms=$2 ;;
              --seed) seed=$2 ;;
              --branches) branches=$2 ;;
              --jobs) jobs=(--jobs "$2") ;;
            esac
            shift ;;
          *) usage >&2; echo "explore-raft: unknown argument: $1" >&2; exit 2 ;;
        esac
        shift
      done
      mkdir -p "$output"
      cd "$output"
      export CHAOS_STORE=$PWD/store
      chaos-boot --kernel ${kernel.packages.net-vmlinux}/vmlinux --initrd ${packages.initrds.initrd-raft} --vms "$vms" --disk-mib 16 \
          --seed "$seed" --append "''${cmdline:-raft_bug=$bug}" | tee boot.json \
        | chaos-explore-round --branches "$branches" --stop-after-bugs 1 "''${jobs[@]}" | tee round.json \
        | chaos-minimize "''${jobs[@]}" | tee minimal.json \
        | chaos-reproduce | tee reproduced.json | chaos-verdict | tee verdict.json | chaos-receipt >receipt.json
      chaos-report --in receipt.json >report.html
      chaos-show minimal.json
      chaos-show verdict.json
      echo "report:  $PWD/report.html"
      echo "receipt: $PWD/receipt.json"
    '';
  };
  # The dry run of the first workload: what it registers, and what is seen of it without faults.
  localReport = pkgs.writeShellApplication {
    name = "rust-workload-local-report";
    text = ''
      exec ${packages.guests.guest-rust-workload}/bin/chaos-rust-workload "$@"
    '';
  };
  exploreRustWorkload = pkgs.writeShellApplication {
    name = "explore-rust-workload";
    runtimeInputs = [ packages.packages.chaos-tools ];
    text = ''
      usage() {
        cat <<'TEXT'
      usage: explore-rust-workload [options]

      Boots three nodes of the first workload, which chaos-scaffold makes a project of, with its planted bug, explores schedules of faults
      until the bug shows, shrinks the schedule, replays it, and writes the receipt. Ends with what was found, for people.

        --output DIR    where the store and the descriptors go (default explore-rust-workload)
        --initrd FILE   another workload (packed with chaos-initrd)
        --bug NAME      no_memory (default) or none: bug=NAME on every kernel command line
        --vms N         nodes (default 3)
        --seed N        seed of everything random (default 1)
        --branches N    branches at most (default 128)
        --jobs N        branches at a time (default: the number of cores)

      exit codes: those of the stage that failed; 0 also when a bug is found
      TEXT
      }
      output=explore-rust-workload initrd=${packages.initrds.initrd-rust-workload} bug=no_memory vms=3 seed=1 branches=128 jobs=()
      while [ $# -gt 0 ]; do
        case $1 in
          --help | -h) usage; exit 0 ;;
          --output | --initrd | --bug | --vms | --seed | --branches | --jobs)
            [ $# -ge 2 ] || { echo "explore-rust-workload: $1 needs a value" >&2; exit 2; }
            case $1 in
              --output) output=$2 ;;
              --initrd) initrd=$(realpath "$2") ;;
              --bug) bug=$2 ;;
              --vms) vms=$2 ;;
              --seed) seed=$2 ;;
              --branches) branches=$2 ;;
              --jobs) jobs=(--jobs "$2") ;;
            esac
            shift ;;
          *) usage >&2; echo "explore-rust-workload: unknown argument: $1" >&2; exit 2 ;;
        esac
        shift
      done
      mkdir -p "$output"
      cd "$output"
      export CHAOS_STORE=$PWD/store
      chaos-boot --kernel ${kernel.packages.net-vmlinux}/vmlinux --initrd "$initrd" --vms "$vms" --disk-mib 0 --seed "$seed" \
          --append "bug=$bug" | tee boot.json \
        | chaos-explore-round --branches "$branches" --stop-after-bugs 1 "''${jobs[@]}" | tee round.json \
        | chaos-minimize "''${jobs[@]}" | tee minimal.json \
        | chaos-reproduce | tee reproduced.json | chaos-verdict | tee verdict.json | chaos-receipt >receipt.json
      chaos-show minimal.json
      chaos-show verdict.json
      echo "receipt: $PWD/receipt.json"
    '';
  };
in
lib.mapAttrs program (lib.filterAttrs (name: _: name == "chaos-contract" || packages.tools ? ${name}) packages.packages)
// {
  default = program "explore-raft" exploreRaft;
  explore-raft = program "explore-raft" exploreRaft;
  explore-rust-workload = program "explore-rust-workload" exploreRustWorkload;
  rust-workload-local-report = program "rust-workload-local-report" localReport;
}
