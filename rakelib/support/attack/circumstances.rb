# frozen_string_literal: true

require_relative "../../../spec/support/hub_server"
require_relative "patience"
require "fileutils"
require "timeout"
require "tmpdir"

# What happens around a call rather than in it: interrupts, forks, compaction, closing, and a hub that lies.
class Circumstances
  Wrong = Class.new(StandardError)
  # What a call may take to end once it is told to.
  PATIENCE = 5

  def initialize(root)
    @tiny = File.join(root, "tiny")
  end

  # A call that is ended at some moment; the next one gives what it always gave.
  def interrupts(random)
    expected = embed
    thread = calling(random)
    sleep(random.rand * 0.02)
    case random.rand(3)
    when 0 then thread.kill
    when 1 then thread.raise(Interrupt)
    else thread.raise(Timeout::Error, "now")
    end
    ended(thread)
    raise Wrong, "another vector after an interrupt" unless embed == expected
  end

  # A child that is made while others call can call itself.
  def forks(random)
    expected = embed
    thread = calling(random)
    sleep(random.rand * 0.02)
    child = fork { exit!(embed == expected ? 0 : 1) }
    status = Patience.new(PATIENCE, Process.pid, child).wait { |seconds| ending(child, seconds) }
    unless status
      Process.kill(:KILL, child) && Process.wait(child)
      raise Wrong, "a child does not come back"
    end
    ended(thread)
    raise Wrong, "a child ended with #{status.inspect}" unless status.success?
  end

  # Objects move between and within calls.
  def compaction(random)
    expected = embed
    GC.compact if GC.respond_to?(:compact)
    thread = calling(random)
    GC.stress = random.rand(4).zero?
    found = embed
    GC.stress = false
    llm.generate("the", max_length: 3) { |_| GC.compact if random.rand(2).zero? && GC.respond_to?(:compact) }
    ended(thread)
    raise Wrong, "another vector after compaction" unless found == expected
  ensure
    GC.stress = false
  end

  # A model that is closed during calls ends them with a result or with an error that says so.
  def closing(random)
    model = Candle::EmbeddingModel.from_pretrained(File.join(@tiny, "bert-sentence"), device: "cpu")
    threads = Array.new(1 + random.rand(3)) { Thread.new { 5.times { model.embed(["the fox"] * 20) } } }
    threads.each { |thread| thread.report_on_exception = false }
    sleep(random.rand * 0.02)
    model.close
    threads.each do |thread|
      ended(thread)
    rescue Candle::Error => e
      raise unless e.message.include?("closed")
    end
  end

  # Headers that lie, beside bodies and states that do.
  LIES = {
    "Content-Length" => %w[-1 0 1 99999999999999999999 x], "Location" => %w[file:///etc/passwd / http://127.0.0.1:1/],
    "ETag" => ["", '"../../x"', '"a/b"', "\u0001", '"x"' * 500], "X-Repo-Commit" => ["../../..", "", "x" * 5000],
    "Content-Range" => ["bytes 5-3/2", "bytes */*", "none"], "X-Linked-Size" => %w[18446744073709551615 -1],
    "X-Linked-Etag" => ["", '"../x"'], "Retry-After" => %w[0 -1 never]
  }.freeze
  STATES = [200, 204, 206, 301, 302, 307, 401, 404, 416, 429, 500, 503, 999].freeze

  # A download from a hub that answers some requests with nonsense; nothing is written beside the cache.
  def hub(random)
    server = HubServer.new
    home = fresh_home
    serve(server, "org/model", "bert")
    (1 + random.rand(3)).times do
      path = %w[config model tokenizer revision / signature].sample(random: random)
      site = %i[hub store].sample(random: random)
      server.fault(path, times: 1 + random.rand(3), site: site) { |answer, _| lie(answer, random) }
    end
    download(server, home)
    outside = Dir.children(home) - %w[cache]
    raise Wrong, "#{outside} lies beside the cache" unless outside.empty?
  ensure
    server&.stop
  end

  # A process that is killed while it saves leaves the old or the new file, and the next save nothing beside it.
  def saves(random)
    folder = fresh_home
    path = File.join(folder, "saved")
    small, large = random.rand(2).zero? ? indexes : sessions
    small.save(path)
    child = fork { loop { [small, large].each { |one| one.save(path) } } }
    sleep(random.rand * 0.04)
    Process.kill(:KILL, child)
    Process.wait(child)
    found = size_of(small, path)
    raise Wrong, "a file with #{found} after a kill" unless [small, large].any? { |one| count(one) == found }

    large.save(path)
    raise Wrong, "#{Dir.children(folder)} after a kill" unless Dir.children(folder) == ["saved"]
  end

  private

  def indexes
    @indexes ||= [10, 20_000].map do |count|
      Candle::Index.new(dimension: 4).add_all((0...count).map { |id| [id, [id.to_f, 1.0, 2.0, 3.0]] })
    end
  end

  def sessions
    @sessions ||= [1, 500].map do |count|
      Candle::Session.new(llm, messages: [{ role: "user", content: "the fox " * 100 }] * count)
    end
  end

  def count(saved) = Candle::Index === saved ? saved.size : saved.messages.size

  def size_of(kind, path)
    count(Candle::Index === kind ? Candle::Index.open(path) : Candle::Session.load(llm, path))
  end

  # The one before goes now: at its end an input may be out of time, and what is torn out of removing a folder says that
  # it is not empty.
  def fresh_home
    FileUtils.rm_rf(@home) if @home
    @home = Dir.mktmpdir("hub", Dir.pwd)
  end

  def lie(answer, random)
    case random.rand(4)
    when 0 then answer.cut_at = random.rand(200)
    when 1 then answer.status = STATES.sample(random: random)
    when 2 then answer.body = random.bytes(random.rand(3000))
    else
      name = LIES.keys.sample(random: random)
      answer.headers[name] = LIES[name].sample(random: random)
    end
  end

  def download(server, home)
    ENV.update("HF_ENDPOINT" => server.url, "HF_HOME" => File.join(home, "cache"))
    Candle::EmbeddingModel.from_pretrained("org/model", device: "cpu")
  end

  def serve(server, id, checkpoint)
    folder = File.join(@tiny, checkpoint)
    Dir.children(folder).each do |name|
      server.add(id, name, File.binread(File.join(folder, name)), large: name.end_with?(".safetensors"))
    end
  end

  def embed = model.embed("the fox")
  def model = @model ||= Candle::EmbeddingModel.from_pretrained(File.join(@tiny, "bert-sentence"), device: "cpu")
  def llm = @llm ||= Candle::LLM.from_pretrained(File.join(@tiny, "decoders/llama"), device: "cpu")

  # A thread in the middle of something.
  def calling(random)
    works = [-> { model.embed(["the quick fox"] * 200) }, -> { llm.generate("the", max_length: 50) },
             -> { Candle::Tensor.rand([200, 200]).matmul(Candle::Tensor.rand([200, 200])) },
             -> { model.tokenizer.encode("the fox " * 20_000) },
             -> { Candle::EmbeddingModel.from_pretrained(File.join(@tiny, "bert"), device: "cpu") }]
    work = works.sample(random: random)
    model && llm
    Thread.new(&work).tap { |thread| thread.report_on_exception = false }
  end

  # How a process ended, where it does within some seconds.
  def ending(child, seconds)
    deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + seconds
    until (found = Process.wait2(child, Process::WNOHANG))
      return if Process.clock_gettime(Process::CLOCK_MONOTONIC) > deadline

      sleep 0.002
    end
    found.last
  end

  def ended(thread)
    patience = Patience.new(PATIENCE, Process.pid)
    raise Wrong, "a call does not end" unless patience.wait { |seconds| thread.join(seconds) }
  rescue Interrupt, Timeout::Error, Candle::InterruptedError
    nil
  end
end
