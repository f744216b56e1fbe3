/**
 * Every bound of the product in one place: beyond it is a typed refusal, never a silent truncation. Units are last in the names.
 */
const KiB = 1024;
const MiB = 1024 * KiB;
const GiB = 1024 * MiB;

export const LIMITS = {
  /** One frame between the controller and the spawner or init, either direction. Same number in native/wire.h. */
  frameBytes: 1 * MiB,
  /** Output of one exec stream that init keeps for a reader that is slow or away, before the writer blocks. */
  execWindowBytes: 1 * MiB,
  /** Default cap on each captured output stream of one exec; bytes beyond it are counted and dropped. */
  execOutputBytes: 16 * MiB,
  execArgvBytes: 128 * KiB * 8,
  /** One argument of a program: the kernel's MAX_ARG_STRLEN without the NUL. */
  argumentBytes: 128 * KiB - 1,
  execsPerSandbox: 256,
  /** Processes and threads of one rollout's machine. */
  sandboxPids: 1024,
  /** Finished execs whose exit was not acknowledged; the oldest is dropped beyond it. */
  execsRetained: 256,
  envEntries: 4096,
  servicesPerSandbox: 16,
  labelsPerSandbox: 32,
  /** Entries of one network's list of hosts. */
  allowedHosts: 1024,
  /** Requests and tunnels that one sandbox has under way through the egress proxy; all sandboxes together; and what each has then still. */
  egressFlowsPerSandbox: 128,
  egressFlows: 8192,
  egressFlowsAssured: 8,
  /** Requests that a client sends on one connection before their answers. */
  egressPipelined: 32,
  /** Head of one request. */
  egressHeadBytes: 16 * KiB,
  egressHeadMs: 10_000,
  /** From the proxy's answer to a CONNECT to the whole of its client's first TLS message; in so many pieces. */
  egressHelloMs: 10_000,
  egressHelloPieces: 64,
  /** Until a client that was refused has taken its answer. */
  egressLastWordsMs: 3_000,
  /** One question to a name server; questions at once, of one sandbox and of all. */
  egressLookupMs: 8_000,
  egressLookupsPerSandbox: 8,
  egressLookups: 256,
  /** To connect to a host, over all of its addresses; and how many of them are tried. */
  egressConnectMs: 15_000,
  egressAddresses: 8,
  /** A connection on which nothing moves. */
  egressIdleMs: 600_000,
  /** Destinations that were refused to one sandbox and are told one by one; the others are counted. */
  egressRefusalsKept: 64,
  /** Ports of sandboxes on the host's side: of one sandbox, and connections to one. */
  publishedPorts: 32,
  publishedConnections: 128,
  /** Files moved in one tree transfer. */
  treeEntries: 1_000_000,
  treePathBytes: 4096,
  /** Paths and link targets of one tree that are held in memory together. */
  treeNamesBytes: 256 * MiB,
  /** Characters looked at to find out where the links of one tree lead; those that are left then are refused. */
  treeLinkWork: 32 * MiB,
  treeBytes: 64 * GiB,
  sandboxesPerHost: 8192,
  /** Made before anybody asks for them. */
  warmSandboxes: 1024,
  /** A lease is never shorter or longer than this. */
  leaseMinMs: 1_000,
  leaseMaxMs: 24 * 3600 * 1000,
  /** How long a sandbox that cannot be paused at the end of its lease runs on, and how often it is tried. */
  latePauseMs: 3600 * 1000,
  latePauseTryMs: 5_000,
  /** The death of a controller is noticed without it; one that is only stopped or busy for less than this loses no machine. */
  leaseDefaultMs: 600_000,
  /** How long machines may wait for a controller when theirs has died. */
  takeOverSeconds: 24 * 3600,
  imageLayers: 128,
  imageManifestBytes: 4 * MiB,
  imageLayerBytes: 64 * GiB,
  taskConfigBytes: 1 * MiB,
  /** No phase of a task may ask for more. */
  taskTimeoutMs: 7 * 24 * 3600 * 1000,
  instructionBytes: 1 * MiB,
  jsonLineBytes: 1 * MiB,
  /** A tokenizer.json or chat template. */
  tokenizerFileBytes: 256 * MiB,
  /** Characters of text whose tokens are remembered, for each tokenizer. */
  encodedChars: 16 * MiB,
  registryFileBytes: 64 * MiB,
  /** A task's solve.sh, and the file of the script harness. */
  solutionScriptBytes: 4 * MiB,
  rewardFileBytes: 64 * KiB,
  rewardKeys: 256,
  tasksPerRun: 1_000_000,
  /** Inputs among which the order of tasks is drawn; a longer list is shuffled through a window of this size. */
  shuffleWindow: 10_000,
  /** Inputs that are no tasks, before a run that has found none gives up. */
  refusedBeforeStart: 10_000,
  /** Tries of one rollout that may be lost to the death of controllers before that stands as its end. */
  controllerLosses: 16,
  /** Phases of a rollout that no task gives a time of its own, milliseconds. */
  leaseTimeoutMs: 120_000,
  prepareTimeoutMs: 600_000,
  /** An agent without a time limit of its own. */
  agentTimeoutMs: 24 * 3600 * 1000,
  /** Between the end of the agent's time and giving up on the harness. */
  harnessGraceMs: 30_000,
  killProcessesTimeoutMs: 60_000,
  /** Between the last sign of a machine and the report of its end. */
  endReportMs: 30_000,
  collectTimeoutMs: 600_000,
  /** What verification may take beyond the times of its own steps: machines made, workspaces moved. */
  verifyOverheadMs: 600_000,
  /** Running rollouts get this long after the first interrupt. */
  drainGraceMs: 30_000,
  /** A host that stays short of memory or disk with nothing running ends the run after this. */
  hostShortMs: 300_000,
  attemptsPerTask: 4096,
  eventBytes: 4 * MiB,
  /** Events of one log that wait to be written. */
  logQueueBytes: 64 * MiB,
  /** Body of one request of a harness, after decompression. */
  gatewayBodyBytes: 32 * MiB,
  /** Bodies of requests that are being read or wait for their answers, over all sessions of a gateway. */
  gatewayBufferedBytes: 512 * MiB,
  /** The same of one session. */
  sessionBufferedBytes: 128 * MiB,
  /** Values in the JSON of one body: so many small ones would cost many times its bytes. */
  requestValues: 500_000,
  gatewayHeaderBytes: 64 * KiB,
  /** Time for the preface and the headers of a request, and for all of its body, milliseconds. */
  gatewayHeadersMs: 60_000,
  gatewayBodyMs: 300_000,
  /** Idle connections of harnesses: tools run for minutes between two calls. */
  gatewayIdleMs: 600_000,
  /** A harness that reads nothing of its answer for so long has gone. Longer than a machine is frozen while its model thinks. */
  gatewayStalledMs: 600_000,
  /** An answer that has not begun by then is begun without content: clients give up on headers that do not come. */
  gatewayHeadersHeldMs: 60_000,
  gatewayConnections: 65_536,
  callsInFlightPerSession: 256,
  /** Versions of the policy that a rollout's log names; more of them are in its call log. */
  policyVersionsOfRollout: 64,
  /** Conversations whose tokens are counted at the same time, for one session: they cost no budget. */
  countsInFlightPerSession: 8,
  /** One model call, from its arrival to its last token. */
  modelCallMs: 3_600_000,
  /** After a harness hung up in the middle of an answer, a retry can still join it for so long; then the generation is aborted. */
  retryJoinMs: 3_000,
  /** An equal request beside one in flight waits so long for the first to hang up, which makes it a retry. */
  retryDetectMs: 250,
  /** Answers that are kept for retries, for each session: how many, and how many characters. */
  replaysKept: 8,
  replayChars: 256 * KiB,
  /** Requests of one session that were refused before they reached the engine, and are recorded. */
  refusalsRecorded: 32,
  /** Refused requests of one session, after which the next are refused unread. */
  refusalsRead: 2_000,
  /** Failures of the upstream in a row, after which a session takes no more calls. */
  upstreamFailuresInARow: 200,
  /** Sessions that are over and still answer that they are. */
  closedSessionsKnown: 65_536,
  /** Sessions that a gateway opens because a request names them by its key. */
  sessionsByKey: 100_000,
  sessionDrainMs: 5_000,
  /** A request of a machine that was taken over waits so long for its session to be open again; then its client is told to come back. */
  sessionArrivalMs: 60_000,
  /** The same for calls that an agent left behind when it ended. */
  agentDrainMs: 1_000,
  /** One session's call log, beyond which it takes no more calls. */
  callLogBytes: 4 * GiB,
  upstreamBodyBytes: 64 * MiB,
  /** A streamed answer with all that comes with its tokens. */
  upstreamStreamBytes: 512 * MiB,
  /** One server-sent event of an inference server. */
  sseEventBytes: 64 * MiB,
  /** Silence within a streamed answer, while its reader is ready for more. */
  upstreamStallMs: 600_000,
  /** Asking a server what it can do. */
  upstreamProbeMs: 120_000,
  /** Rollouts whose agents are outside, at the same time. */
  drivenRollouts: 1024,
  /** A call that waits for the policy's new weights, while its client can still be told to come back: less than `gatewayHeadersHeldMs`. */
  policyHoldMs: 45_000,
  /** The same of a call that has begun its answer, or that nobody would ask again. */
  policyHoldBegunMs: 3_600_000,
  /** Answers that the embedded policy samples side by side. */
  policyGenerations: 4096,
  policyRequestBytes: 4 * MiB,
  tensorHeaderBytes: 16 * MiB,
  /** Tries of one call while no endpoint of the policy answers. */
  policyOutageMs: 60_000,
  /** Objects and lists inside each other in a body that a harness sends. */
  requestNesting: 256,
  /** How often one answer goes on after its server has aborted it. */
  generationResumes: 64,
  /** Tokens of an answer where neither the harness nor the model's context sets a limit. */
  answerTokens: 32_768,
  /** Connections to one inference server; calls beyond it wait. */
  upstreamConnections: 4096,
  /** Tool calls of one answer that are carried out; the rest are answered with an error. */
  toolCallsPerTurn: 64,
  /** Bytes of one rollout's conversation, which is held in memory and sent whole with every call. */
  conversationBytes: 32 * MiB,
  /** Bytes of a file that a model reads or edits as a whole. */
  agentFileBytes: 16 * MiB,
  /** Bytes of one command that a model asks for. */
  agentCommandBytes: 1 * MiB,
  /** Output of an agent CLI that is kept, each stream; what is more is cut in the middle. */
  cliOutputBytes: 8 * MiB,
  /** One session log of an agent CLI. */
  cliLogBytes: 64 * MiB,
  cliLogEntries: 10_000,
  /** Clearing away what an agent CLI left in its own directory; what takes longer stays. Well within `harnessGraceMs`. */
  cliClearMs: 10_000,
  healthcheckOutputBytes: 64 * KiB,
  verifierOutputBytes: 16 * MiB,
  artifactBytes: 1 * GiB,
  /** Files, directories and links of one artifact: they cost the host more than their bytes. */
  artifactEntries: 100_000,
  /** What the dashboard's read API keeps in memory: folded runs and their rollouts in all, and rollouts' records. */
  viewedRuns: 64,
  viewedRollouts: 300_000,
  viewedRecords: 24,
  /** Pages that follow a run or a rollout at the same time. */
  viewStreams: 256,
  /** Marks and notes of one run. */
  annotationsBytes: 16 * MiB,
  /** One search through a run: what is read and what is found. */
  searchBytes: 4 * GiB,
  searchHits: 500,
  /** Text that the read API puts into one answer, of one message, file or call. */
  viewedTextBytes: 256 * KiB,
  /** Body of a request to the server, where a route does not say otherwise. */
  serverBodyBytes: 4 * MiB,
  /** What is still read of a body that is too large, so that its sender can hear of it, and for how long. */
  refusedBodyBytes: 64 * MiB,
  refusedBodyMs: 10_000,
  /** Idle connections of its clients. */
  serverIdleMs: 75_000,
  /** Sandboxes that are being made at once for clients of the server; more wait, so many of one owner and so many of all. */
  creationsAtOnce: 16,
  creationsWaitingOfOwner: 1024,
  creationsWaiting: 4096,
  /** The longest that a creation waits for its turn and its place; clients give a request a minute. */
  creationWaitMs: 30_000,
  /** What clients say about a sandbox: entries, and bytes of names and values together. */
  metadataEntries: 64,
  metadataBytes: 16 * KiB,
  /** Creations whose key is remembered although their sandbox has ended. */
  creationKeysKept: 65_536,
  /** Of one fork. */
  forkChildren: 100,
  /** Of a sandbox that is made through the E2B protocol, which has no field for it. */
  e2bDiskBytes: 4 * GiB,
  /** Samples, and log lines, that are kept of one sandbox. */
  observationsKept: 1000,
  /** A message of a client to the guest agent, and a file's content in one. */
  envdMessageBytes: 8 * MiB,
  /** Events of one watcher that wait to be fetched; beyond it the oldest go. */
  watchEventsKept: 10_000,
  watchersPerSandbox: 64,
  /** Files of a template's build that a client uploads: one archive. */
  templateUploadBytes: 4 * GiB,
  templateBuildsAtOnce: 2,
  /** Builds of one owner that wait or are under way, and its templates. */
  templateBuildsOfOwner: 32,
  templatesOfOwner: 1000,
  templateBuildLogs: 10_000,
  templateBuildMs: 3_600_000,
  /** From the start of a template's start command to its being ready. */
  templateReadyMs: 300_000,
  /** Extended attributes of a file that are told and set, and bytes of their names and values. */
  fileAttributes: 64,
  fileAttributeBytes: 4 * KiB,
  /** Parts of one form. */
  filesPerUpload: 10_000,
  /** Entries of a directory that are listed, through all depths. */
  listedEntries: 50_000,
  /** A request for a command, with its input. */
  execRequestBytes: 32 * MiB,
  /** Refusals of one transfer that its answer names. */
  refusalsListed: 1000,
  /** Of a service that makes sandboxes for us: until it is connected, until it has answered, what it may answer, and how often it is asked again. */
  remoteConnectMs: 10_000,
  remoteRequestMs: 60_000,
  remoteCreateMs: 300_000,
  remoteSnapshotMs: 900_000,
  /** A file, or all of an image's layer. */
  remoteTransferMs: 1_800_000,
  remoteAnswerBytes: 8 * MiB,
  remoteRetries: 3,
  /** Waited for at most, whatever it asks for. */
  remoteRetryAfterMs: 30_000,
  remoteConnections: 256,
  /** Without a sign of life of the machine, which is asked to give one every third of it. */
  remoteSilenceMs: 90_000,
  /** How often our init in it is asked for an answer, and how long that may take. */
  remotePulseMs: 15_000,
  /** Input of the machine that goes out in one request. */
  remoteInputBytes: 1 * MiB,
  /** Requests under way when the server is told to end. */
  serverDrainMs: 10_000,
  /** Policies (endpoint and model) whose rollouts are asked for one by one at the same time. */
  singlePolicies: 16,
  /** One request of an environment client, with its task's data; and the rollouts that one server runs for such clients at the same time. */
  environmentRequestBytes: 16 * MiB,
  environmentRuns: 4096,
  /** Until an answer that its socket does not take is given up. */
  environmentSendMs: 30_000,
  /** Groups that one run of delivery ever accepts: their names are kept, so that one submitted again is known. */
  deliveryGroups: 4_000_000,
  /** JSON of a submitted group's metadata. */
  deliveryMetadataBytes: 16 * KiB,
  /** Events after which the state of a run is written down, so that opening it reads no more of the log than this. */
  deliverySnapshotEvents: 20_000,
  /** Samples of members that wait for the rest of their group, in memory, over all runs of a process; what is more waits in files. */
  deliveryKeptBytes: 128 * MiB,
  /** What one lease may hold when its trainer sets no bound. */
  leaseBytes: 256 * MiB,
  /** Lease requests of one run that wait. */
  leaseWaiters: 16_384,
  /** Body of a request that names many groups. */
  submitBodyBytes: 64 * MiB,
  /** Lines of the terminal log in one answer. */
  terminalRecords: 1000,
  /** A cancelled rollout whose worker does not end it in this time no longer counts as running. */
  rolloutAbandonMs: 900_000,
  /** Between two tries to write a finished group to a disk that has no room. */
  groupWriteRetryMs: 5_000,
} as const;
