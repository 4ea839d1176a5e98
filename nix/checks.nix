# SPDX-License-Identifier: AGPL-3.0-or-later
# What `nix flake check` builds. The slow test suites (the CPU against its oracles, Linux in a machine, the end-to-end runs) are cargo's
# and run in checks/all; here are those that need no kernel, and the pipelines, which are derivations anyway.
{
  self,
  nixpkgs,
  pkgs,
  packages,
  platform,
  chaosTest,
  kernel,
  rust,
  root,
  workspace,
  ...
}:
let
  inherit (pkgs) lib;
  inherit (chaosTest) mkChaosTest;
  lints = import ./lints.nix {
    inherit
      pkgs
      rust
      root
      workspace
      ;
    profiles = packages.stages.chaos-profiles;
  };
  failures = import ./failures.nix {
    inherit
      pkgs
      chaosTest
      kernel
      packages
      raft
      root
      ;
  };

  # Three Raft nodes with one of the planted bugs.
  raft =
    bug: given:
    mkChaosTest (
      {
        kernel = kernel.packages.net-vmlinux;
        initrd = packages.initrds.initrd-raft;
        vms = 3;
        diskMib = [ 16 ];
        seed = 42;
        append = "raft_bug=${bug}";
      }
      // given
    );
  explore = raft "double_vote" {
    name = "explore-raft";
    stopAfterBugs = 1;
    expect = "bug";
  };
  # Several shards and rounds, so that merging and going on from a merged round are under test.
  planted = raft "double_vote" {
    name = "planted-bug";
    rounds = 2;
    shards = 2;
    branches = 8;
    expect = "bug";
  };
  pages =
    let
      tool = packages.packages.chaos-tools;
    in
    pkgs.runCommand "pages-and-completions" { nativeBuildInputs = [ tool ]; } ''
      for tool in ${tool}/bin/*; do
        name=$(basename $tool)
        for file in man/man1/$name.1 bash-completion/completions/$name zsh/site-functions/_$name fish/vendor_completions.d/$name.fish; do
          [ -s ${tool}/share/$file ] || { echo "$name has no share/$file" >&2; exit 1; }
        done
      done
      touch $out
    '';
  # Every program answers, and the main job runs with one command: `nix flake check` by itself builds no app.
  apps = import ./apps.nix { inherit pkgs packages kernel; };
  appsAnswer = pkgs.runCommand "apps" { } ''
    ${lib.concatStrings (
      lib.mapAttrsToList (name: app: ''
        ${app.program} --help >help || { echo "${name} --help failed" >&2; exit 1; }
        grep -qi '^usage:' help || { echo "${name} --help does not say how it is used" >&2; exit 1; }
      '') (removeAttrs apps [ "rust-workload-local-report" ])
    )}
    # A guest's dry run, which has no help: it answers what it does not know.
    ! ${apps.rust-workload-local-report.program} --help >said 2>&1
    grep -q 'unknown argument' said
    code=0
    ${apps.explore-raft.program} --branch 3 >said 2>&1 || code=$?
    [ $code = 2 ] && grep -q 'unknown argument: --branch' said
    ${apps.explore-raft.program} --output run --bug none --branches 1 --jobs 1 >said
    grep -q no_bug_found said
    mkdir $out
    cp run/receipt.json $out/
  '';
  # And neither packages, the shell, nor the formatter. Kernels that no check uses are left to `checks/flake kcov`: each takes minutes.
  everything = pkgs.linkFarm "everything" (
    removeAttrs packages.packages (lib.attrNames kernel.packages)
    // {
      shell = removeAttrs shell [ "formatter" ];
      inherit (shell) formatter;
    }
  );
  shell = import ./shell.nix { inherit pkgs platform; };
  # What a changed argument leaves as it is, told by derivation paths.
  graph =
    let
      short = raft "double_vote" { name = "planted-bug"; rounds = 2; shards = 2; branches = 8; };
      long = raft "double_vote" { name = "planted-bug"; rounds = 3; shards = 2; branches = 8; };
      patient = raft "double_vote" { name = "planted-bug"; rounds = 2; shards = 2; branches = 8; attempts = 999; };
      round = test: n: (lib.elemAt test.rounds n).merged;
      overlaid = (self.overlays.default pkgs pkgs).chaoscontrol;
      same = what: a: b: lib.optional (a.drvPath != b.drvPath) "${what} must be the same derivation";
      other = what: a: b: lib.optional (a.drvPath == b.drvPath) "${what} must be another derivation";
      wrong = lib.concatLists [
        (same "round 2 of a longer campaign" (round short 1) (round long 1))
        (same "the rounds of one with more attempts to minimize" short.explored patient.explored)
        (other "a minimization with more attempts" short.minimize patient.minimize)
        (same "the receipt of the same campaign" short.receipt planted.receipt)
        (same "a tool of the overlay" overlaid.chaos-boot packages.packages.chaos-boot)
      ];
    in
    if wrong != [ ] then throw "graph: ${lib.concatStringsSep "; " wrong}" else pkgs.runCommand "graph" { } "touch $out";
  downstream = (import ../checks/downstream/flake.nix).outputs {
    inherit nixpkgs;
    self = { };
    chaoscontrol = self;
  };
in
lints
// failures.checks
// {
  explore-raft = explore;
  planted-bug = planted;
  # From profiles, of which single values are said here.
  correct = mkChaosTest {
    name = "correct";
    kernel = kernel.packages.net-vmlinux;
    initrd = packages.initrds.initrd-raft;
    profile = ../contracts/profiles/three-nodes.ncl;
    campaign = ../contracts/profiles/raft-double-vote.ncl;
    append = "raft_bug=none";
    coverageOf = packages.packages.guest-raft;
    branches = 8;
    horizon = "2s";
    expect = "no-bug";
  };

  # One bounded branch, exported to a plain folder, and from there reproduced, judged and bound again: what a user does who gets
  # a bug by mail.
  snapshot-replay-smoke =
    pkgs.runCommand "snapshot-replay-smoke"
      {
        nativeBuildInputs = [
          packages.stages.chaos-receipt
          packages.stages.chaos-reproduce
          packages.stages.chaos-store
          packages.stages.chaos-verdict
        ];
      }
      ''
        mkdir exported
        add() {
          cp -r --no-preserve=mode $1/objects $1/packs $1/format exported/
          local link
          for link in $1/from/*; do if [ -e "$link" ]; then add "$(readlink -f $link)"; fi; done
        }
        add ${explore.minimize}
        cp ${explore.minimize}/descriptor.json bug.json
        chaos-store verify --store exported
        chaos-reproduce --quiet --store replay --from exported --in bug.json >reproduced.json
        chaos-verdict --quiet --store replay --from exported --in reproduced.json >verdict.json
        # The requirement is a parameter, and so part of a descriptor: this one is no part of the chain.
        chaos-verdict --quiet --require snapshot_backed_reproduced --store judged --from replay --from exported --in reproduced.json >judged.json
        chaos-receipt --quiet --store replay --from exported --in verdict.json >receipt.json
        chaos-receipt --check receipt.json --store replay --from exported
        cmp receipt.json ${explore.receipt}/descriptor.json
        mkdir $out
        cp receipt.json $out/
      '';

  # A planted bug under a test that expects none: it must fail, and say what a person needs.
  canary = failures.mustFail "canary" (raft "double_vote" {
    name = "explore-raft";
    stopAfterBugs = 1;
    expect = "no-bug";
  }) {
    code = 10;
    says = [
      "disagreement: one leader per term"
      "minimal after"
      "replay it, bit for bit:"
      "chaos-reproduce --store replay --in ${explore.minimize}/descriptor.json --from ${explore.minimize}"
      "expected no-bug: class no_bug_found is required, the verdict is snapshot_backed_reproduced"
    ];
  };

  inherit graph pages;
  apps = appsAnswer;
  packages = everything;
}
// lib.mapAttrs' (name: lib.nameValuePair "downstream-${name}") downstream.checks.x86_64-linux
