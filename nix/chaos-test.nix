# SPDX-License-Identifier: AGPL-3.0-or-later
# mkChaosTest: a whole campaign as a graph of derivations, and a last one that builds only where the outcome is the expected one.
#
#   boot - round 1: shard 1 .. shard N - merge - round 2: ... - minimize - reproduce - verdict - receipt - outcome
#
# Nothing in a round depends on how many rounds follow: a longer campaign builds on those that are finished.
{
  pkgs,
  tools,
  initrds,
  defaultKernel,
}:
let
  inherit (pkgs) lib;
  check = import ./arguments.nix { inherit lib; };
  stages = import ./stages.nix { inherit pkgs tools; };

  classes = [
    "no_bug_found"
    "snapshot_backed_reproduced"
    "snapshot_backed_not_reproduced"
    "schedule_only_replay_gap"
    "missing_snapshot_ref"
    "missing_snapshot_artifact"
    "invalid_snapshot_digest"
    "replay_error"
  ];
  classOf = {
    bug = "snapshot_backed_reproduced";
    no-bug = "no_bug_found";
  };

  # A length of time as text with its unit, in nanoseconds; null where it is none.
  nanoseconds =
    text:
    let
      parts = builtins.match "([0-9]{1,9})(ns|us|ms|s)" text;
      unit = {
        ns = 1;
        us = 1000;
        ms = 1000000;
        s = 1000000000;
      };
    in
    if !(lib.isString text) || parts == null then
      null
    else
      builtins.fromJSON (strip (lib.head parts)) * unit.${lib.elemAt parts 1};
  strip = digits: if lib.hasPrefix "0" digits && digits != "0" then strip (lib.removePrefix "0" digits) else digits;
  duration = low: high: {
    ok =
      x:
      let
        ns = nanoseconds x;
      in
      ns != null && ns >= low && ns <= high;
    must = "must be a length of time with its unit, for instance \"250ms\" or \"5s\"";
  };
  node = {
    ok =
      x:
      lib.isAttrs x
      && x ? workload
      && check.path.ok x.workload
      && lib.isString (x.append or "")
      && lib.all (
        n:
        lib.elem n [
          "workload"
          "append"
        ]
      ) (lib.attrNames x);
    must = "must be a set { workload = PROGRAM; append = \"name=value\"; } (append may be left out)";
  };
  event = {
    ok =
      x:
      lib.isAttrs x
      && lib.isString (x.fault or null)
      && (nanoseconds (x.time or null) != null)
      && lib.all (n: lib.isInt x.${n} || lib.isString x.${n}) (lib.attrNames x);
    must = "must be a set { time = \"812ms\"; fault = \"vm_kill\"; vm = 0; } with the parameters of docs/faults.md";
  };
  day = 86400 * 1000000000;

  accepted = {
    name = check.name // {
      help = "name of the test and of its derivations";
    };
    kernel = check.path // {
      default = null;
      help = "what mkChaosKernel gives, or an ELF vmlinux or bzImage; net-vmlinux unless it is given";
    };
    initrd = check.path // {
      default = null;
      help = "what mkChaosInitrd gives, the same for each VM";
    };
    nodes = check.listOf node // {
      default = null;
      help = "in the place of initrd: a program for each VM, and what its kernel command line gets";
    };
    vms = check.number 1 32 // {
      default = null;
      help = "number of VMs; as many as nodes, else 3";
    };
    seed = check.number 0 9223372036854775807 // {
      default = 0;
      help = "seed of everything random";
    };
    append = check.text // {
      default = "";
      help = "appended to every kernel command line: the workload's parameters";
    };
    cpus = check.number 1 8 // {
      default = 1;
      help = "CPUs of each VM; several want a kernel of mkChaosKernel { smp = true; virtioNet = true; }";
    };
    memoryMib = check.number 1 1048576 // {
      default = 64;
      help = "RAM of each VM";
    };
    diskMib = check.listOf (check.number 1 1048576) // {
      default = null;
      help = "empty disks of each VM; one of 16 MiB unless disks are given";
    };
    disks = check.listOf check.path // {
      default = [ ];
      help = "disk images; each VM gets its own copy";
    };
    flush = check.switch // {
      default = true;
      help = "whether disks offer FLUSH; without it a completed write is durable";
    };
    latency = duration 50000 60000000000 // {
      default = "1ms";
      help = "delay of every link, at least 50us";
    };
    jitter = duration 0 60000000000 // {
      default = null;
      help = "largest random delay on top; what chaos-boot does unless it is given";
    };
    lossPpm = check.number 0 500000 // {
      default = null;
      help = "chance of every frame to get lost, in a million; what chaos-boot does unless it is given";
    };
    nsPerInstruction = check.number 1 1000 // {
      default = 10;
      help = "guest nanoseconds per instruction";
    };
    setupLimit = duration 1 day // {
      default = "30s";
      help = "cluster time by which every VM must have reported setup_complete";
    };
    legacy = check.switch // {
      default = false;
      help = "no ACPI, for kernels of mkChaosKernel { legacy = true; }";
    };
    coverage =
      check.oneOf [
        "user"
        "kernel"
        "all"
        "none"
      ]
      // {
        default = null;
        help = "where the edges lie that the exact engine counts; user, what chaos-boot does, unless it is given";
      };
    coverageOf = check.path // {
      default = null;
      help = "only edges in the code of this static program at fixed addresses, or of the only one in a package";
    };
    coverageRange = check.text // {
      default = null;
      help = "only edges whose branch lies in LOW-HIGH, two hexadecimal addresses";
    };
    engine =
      check.oneOf [
        "exact"
        "kvm"
        "kvm-pmu"
        "kvm-single-step"
      ]
      // {
        default = "exact";
        help = "exact runs anywhere; the others need a builder with the feature kvm (docs/engines.md)";
      };
    tier =
      check.oneOf [
        "reference"
        "compiled"
        "both"
      ]
      // {
        default = null;
        help = "how the exact engine runs instructions: reference, compiled, or both, which compares them; it changes no result";
      };
    profile = check.path // {
      default = null;
      help = "a VM run or workload profile (.ncl or .json) for the cluster; arguments given here win";
    };
    campaign = check.path // {
      default = null;
      help = "a campaign or workload profile for the rounds; arguments given here win, and how many rounds there are is always said here";
    };
    rounds = check.number 1 200 // {
      default = 1;
      help = "rounds of exploration, each on top of the one before";
    };
    branches = check.number 1 1000000000 // {
      default = 64;
      help = "branches of each round, of all its shards together";
    };
    shards = check.number 1 128 // {
      default = 1;
      help = "derivations that a round is spread over; it decides which branches are planned from which";
    };
    horizon = duration 1 day // {
      default = "5s";
      help = "length of a branch in cluster time";
    };
    window = check.number 1 256 // {
      default = 16;
      help = "branch i is planned from the results of branches up to i - window";
    };
    faults = check.listOf event // {
      default = [ ];
      help = "schedule of the first branch; others grow from it";
    };
    stopAfterBugs = check.number 1 1000000 // {
      default = null;
      help = "end a round once so many distinct bugs are known; with one shard only";
    };
    attempts = check.number 1 1000000 // {
      default = 400;
      help = "branches that minimizing one bug may cost";
    };
    expect =
      check.oneOf (
        [
          "no-bug"
          "bug"
        ]
        ++ classes
      )
      // {
        default = "no-bug";
        help = "the verdict that makes the test pass: no-bug, bug (found, and reproduced from its snapshot), or a verdict class";
      };
  };

  # Stores that one store may build on, itself included: a bound of the store.
  storesMax = 250;
  rules = [
    (
      args:
      lib.optional (
        args.initrd == null && args.nodes == null
      ) "neither initrd nor nodes is given: name what the guests run, for instance initrd = mkChaosInitrd { workload = my-node; }"
    )
    (args: lib.optional (args.initrd != null && args.nodes != null) "initrd and nodes are both given: one of them says what runs")
    (
      args:
      lib.optional (args.cpus > 1 && args.kernel == null)
        "cpus is ${toString args.cpus}, but the kernel that is used unless one is given has one: kernel = mkChaosKernel { smp = true; virtioNet = true; }"
    )
    (args: lib.optional (args.nodes == [ ]) "nodes is an empty list: each entry is one VM")
    (
      args:
      lib.optional (
        args.coverageOf != null && args.coverageRange != null
      ) "coverageOf and coverageRange are both given: one of them says which addresses count"
    )
    (
      args:
      lib.optional (args.nodes != null && args.vms != null && args.vms != lib.length args.nodes)
        "vms is ${toString args.vms}, but there are ${toString (lib.length args.nodes)} nodes: leave vms out"
    )
    (
      args:
      lib.optional (args.campaign == null && args.branches < args.shards)
        "branches is ${toString args.branches} and shards ${toString args.shards}: each shard needs a branch at least"
    )
    (
      args:
      lib.optional (args.stopAfterBugs != null && args.shards > 1)
        "stopAfterBugs is given with ${toString args.shards} shards: shards do not know each other's bugs, leave one of the two out"
    )
    (
      args:
      let
        stores = args.rounds * (if args.shards == 1 then 1 else args.shards + 1) + 5;
      in
      lib.optional (stores > storesMax)
        "rounds is ${toString args.rounds} and shards ${toString args.shards}: the chain has ${toString stores} stores, at most ${toString storesMax} are followed; use more branches a round"
    )
    (
      args:
      map (e: "faults has ${e.fault} at ${e.time}, after the horizon of ${args.horizon}") (
        lib.filter (e: args.campaign == null && nanoseconds e.time > nanoseconds args.horizon) args.faults
      )
    )
  ];

  # Parameters that 64 bits may need are texts in documents.
  wide = [
    "bytes_per_second"
    "survivors"
  ];
  schedule = events: {
    schema = "chaoscontrol.schedule";
    version = 1;
    schedule.events = map (
      e:
      lib.mapAttrs (n: x: if lib.isInt x && (lib.hasSuffix "_ns" n || lib.elem n wide) then toString x else x) (
        removeAttrs e [ "time" ]
      )
      // {
        time_ns = toString (nanoseconds e.time);
      }
    ) events;
  };

  flag = name: x: "--${name} ${lib.escapeShellArg (toString x)}";
  flags = lib.concatStringsSep " ";

  mkChaosTest =
    given:
    let
      args = check.applyWith "mkChaosTest" accepted rules given;
      vms =
        if args.vms != null then
          args.vms
        else if args.nodes != null then
          lib.length args.nodes
        else
          3;
      kvm = lib.hasPrefix "kvm" args.engine;
      kernel = if args.kernel == null then defaultKernel else args.kernel;
      initrd =
        if args.nodes == null then
          args.initrd
        else
          initrds.mkChaosInitrd {
            name = "${args.name}-initrd";
            programs = lib.listToAttrs (
              lib.imap0 (i: node: lib.nameValuePair "/nodes/${toString i}" node.workload) args.nodes
            );
          };
      # A profile may import from its folder, which comes along.
      withFolder =
        profile:
        if lib.isPath profile then
          "${
            builtins.path {
              path = dirOf profile;
              name = "profiles";
            }
          }/${baseNameOf profile}"
        else
          toString profile;
      # What is not given is the profile's to say.
      unlessIn = profile: argument: x: lib.optional (profile == null || given ? ${argument}) x;
      nodeAppend = lib.concatLists (
        lib.imap0 (i: node: [
          (flag "append-vm" "${toString i}:chaos.init=/nodes/${toString i} ${node.append or ""}")
        ]) (if args.nodes == null then [ ] else args.nodes)
      );
      jobs = "--jobs \"$NIX_BUILD_CORES\"";
      tier = lib.optional (args.tier != null) (flag "tier" args.tier);
      stageName = title: "${args.name}-${title}";

      boot = stages.stage {
        name = stageName "boot";
        title = "boot";
        tool = "chaos-boot";
        inherit kvm;
        before = ''
          kernel=${kernel}
          if [ -d "$kernel" ]; then
            if [ ! -e "$kernel/vmlinux" ]; then
              echo "mkChaosTest (${args.name}): kernel $kernel holds no vmlinux: give what mkChaosKernel makes, or an image" >&2
              exit 3
            fi
            kernel=$kernel/vmlinux
          fi
          if [ ! -f ${initrd} ]; then
            echo "mkChaosTest (${args.name}): initrd ${initrd} is no file: give what mkChaosInitrd makes, or a cpio archive" >&2
            exit 3
          fi
          ${lib.optionalString (args.coverageOf != null) ''
            ${import ./program.nix "mkChaosTest (${args.name})"}
            counted=$(program ${args.coverageOf}) || exit 3
          ''}
        '';
        arguments = flags (
          [
            "--kernel \"$kernel\""
            "--initrd ${initrd}"
          ]
          ++ lib.optional (args.profile != null) "--profile ${withFolder args.profile}"
          ++ lib.optional (args.profile == null || given ? vms || given ? nodes) (flag "vms" vms)
          ++ lib.concatLists [
            (unlessIn args.profile "seed" (flag "seed" args.seed))
            (unlessIn args.profile "append" (flag "append" args.append))
            (unlessIn args.profile "cpus" (flag "cpus" args.cpus))
            (unlessIn args.profile "memoryMib" (flag "memory-mib" args.memoryMib))
            (unlessIn args.profile "latency" (flag "latency-ns" (nanoseconds args.latency)))
            (lib.optional (args.jitter != null) (flag "jitter-ns" (nanoseconds args.jitter)))
            (lib.optional (args.lossPpm != null) (flag "loss-ppm" args.lossPpm))
            (unlessIn args.profile "nsPerInstruction" (flag "ns-per-instruction" args.nsPerInstruction))
            (unlessIn args.profile "setupLimit" (flag "setup-limit-ns" (nanoseconds args.setupLimit)))
          ]
          ++ nodeAppend
          ++ map (image: "--disk ${image}") args.disks
          ++ map (flag "disk-mib") (
            if args.diskMib == null then
              [ ]
            else if args.diskMib == [ ] then
              [ 0 ]
            else
              args.diskMib
          )
          ++ lib.optional (!args.flush) "--no-flush"
          ++ lib.optional args.legacy "--legacy"
          ++ lib.optional (args.coverage != null) (flag "coverage" args.coverage)
          ++ lib.optional (args.coverageOf != null) "--coverage-of \"$counted\""
          ++ lib.optional (args.coverageRange != null) (flag "coverage-range" args.coverageRange)
          ++ lib.optional kvm (flag "engine" args.engine)
          ++ tier
        );
      };

      explore =
        previous: round: shard:
        stages.after previous {
          name = stageName "round-${toString round}${lib.optionalString (args.shards > 1) "-shard-${toString shard}"}";
          title = "explore-round (round ${toString round}, shard ${toString shard} of ${toString args.shards})";
          tool = "chaos-explore-round";
          inherit kvm;
          environment = lib.optionalAttrs (args.faults != [ ] && round == 1 && shard == 1) {
            faults = builtins.toJSON (schedule args.faults);
            passAsFile = [ "faults" ];
          };
          arguments = flags (
            [ jobs ]
            ++ lib.optional (args.campaign != null) "--profile ${withFolder args.campaign}"
            ++ unlessIn args.campaign "branches" (flag "branches" args.branches)
            ++ unlessIn args.campaign "horizon" (flag "horizon-ns" (nanoseconds args.horizon))
            ++ unlessIn args.campaign "window" (flag "window" args.window)
            ++ lib.optional (args.shards > 1) (flag "shard" "${toString shard}/${toString args.shards}")
            ++ lib.optional (args.faults != [ ] && round == 1 && shard == 1) "--schedule $faultsPath"
            ++ tier
            ++ lib.optional (args.stopAfterBugs != null) (flag "stop-after-bugs" args.stopAfterBugs)
          );
        };
      oneRound =
        previous: round:
        let
          shards = map (explore previous round) (lib.range 1 args.shards);
          link = i: "shard-${toString i}";
        in
        {
          inherit shards;
          merged =
            if args.shards == 1 then
              lib.head shards
            else
              stages.stage {
                name = stageName "round-${toString round}-merged";
                title = "merge (round ${toString round})";
                tool = "chaos-merge";
                from = lib.listToAttrs (lib.imap1 (i: shard: lib.nameValuePair (link i) shard) shards);
                arguments = lib.concatMapStringsSep " " (shard: "${shard}/descriptor.json") shards;
              };
        };
      rounds = lib.foldl' (done: round: done ++ [ (oneRound (if done == [ ] then boot else (lib.last done).merged) round) ]) [
      ] (lib.range 1 args.rounds);
      explored = (lib.last rounds).merged;

      minimize = stages.after explored {
        name = stageName "minimize";
        title = "minimize";
        tool = "chaos-minimize";
        inherit kvm;
        arguments = flags ([ jobs (flag "attempts" args.attempts) ] ++ tier);
      };
      reproduce = stages.after minimize {
        name = stageName "reproduce";
        title = "reproduce";
        tool = "chaos-reproduce";
        inherit kvm;
        arguments = flags tier;
      };
      verdict = stages.after reproduce {
        name = stageName "verdict";
        title = "verdict";
        tool = "chaos-verdict";
      };
      receipt = stages.after verdict {
        name = stageName "receipt";
        title = "receipt";
        tool = "chaos-receipt";
      };
      all = [ boot ] ++ lib.concatMap (round: round.shards ++ lib.optional (args.shards > 1) round.merged) rounds ++ [
        minimize
        reproduce
        verdict
        receipt
      ];

      class = classOf.${args.expect} or args.expect;
      outcomeScript = ''
        show() { chaos-show "$@" --from ${receipt}; }
        digests() { jq -r --arg role "$1" '.outputs[] | select(.role == $role) | .object.digest' ${minimize}/descriptor.json; }
        {
          show ${explored}/descriptor.json | sed -n '/ branches of /{p;q}'
          show ${verdict}/descriptor.json | sed '1,/^$/d' | tail -n +2
          for bug in $(digests bug) $(digests minimized-bug); do echo; show "$bug"; done
          if [ -n "$(digests bug)$(digests minimized-bug)" ]; then
            echo
            echo "replay it, bit for bit:"
            echo "  ${tools.chaos-reproduce}/bin/chaos-reproduce --store replay --in ${minimize}/descriptor.json --from ${minimize}"
          fi
        } >report.txt
        code=0
        chaos-verdict --quiet --require ${class} --in ${reproduce}/descriptor.json --from ${reproduce} --store judged \
          >judged.json 2>why || code=$?
        if [ $code = 10 ]; then
          echo "mkChaosTest (${args.name}): expected ${args.expect}: $(sed 's/^chaos-verdict: //' why)"
        elif [ $code != 0 ]; then
          cat why >&2
          exit $code
        fi
        echo
        cat report.txt
        [ $code = 0 ] || exit $code
        mkdir -p $out
        cp report.txt $out/
        chaos-report --quiet --in ${receipt}/descriptor.json --from ${receipt} >$out/report.html
        ln -s ${receipt}/descriptor.json $out/receipt.json
        ln -s ${receipt} $out/store
      '';
      outcomeTools = [
        tools.chaos-report
        tools.chaos-show
        tools.chaos-verdict
        pkgs.jq
      ];
    in
    pkgs.runCommand args.name {
      nativeBuildInputs = outcomeTools;
      passthru = {
        inherit
          all
          boot
          explored
          initrd
          kernel
          minimize
          receipt
          reproduce
          rounds
          verdict
          ;
        script = outcomeScript;
        programs = outcomeTools;
        arguments = args;
      };
    } outcomeScript;
in
{
  inherit
    accepted
    mkChaosTest
    nanoseconds
    rules
    ;
  problems = check.problems "mkChaosTest" accepted rules;
}
