# frozen_string_literal: true

require "json"
require "net/http"
require "socket"

# Many connections that ask for all kinds of work at once, some of which break off. It runs as a program of its own:
# ruby load_client.rb BASE_URL SECONDS CONNECTIONS
# Answers are the same each time, so that what is kept of them for the next does not look like a leak.
class LoadClient
  MESSAGES = [{ role: "user", content: "hi" }].freeze
  WORK = [
    ["/v1/chat/completions", { model: "llm", messages: MESSAGES, max_tokens: 8, temperature: 0, stream: true }],
    ["/v1/chat/completions", { model: "llm", messages: MESSAGES, max_tokens: 8, temperature: 0 }],
    ["/v1/embeddings", { model: "embedder", input: ["a dog", "the quick fox"] }],
    ["/rerank", { query: "dog", texts: %w[cat dog fox] }],
    ["/predict", { inputs: "a dog" }],
    ["/api/chat", { model: "llm", messages: MESSAGES, options: { num_predict: 8, temperature: 0 } }]
  ].freeze

  def initialize(base, seconds, connections)
    @address = URI(base)
    @stop = Process.clock_gettime(Process::CLOCK_MONOTONIC) + seconds
    @connections = connections
  end

  # @return [Hash] how often each status came, and what broke
  def run
    Array.new(@connections) { |index| Thread.new { index % 10 == 9 ? drop : work(index) } }
         .map(&:value).inject { |all, one| all.merge(one) { |_, a, b| a + b } }
  end

  private

  def running?
    Process.clock_gettime(Process::CLOCK_MONOTONIC) < @stop
  end

  def work(index)
    counts = Hash.new(0)
    Net::HTTP.start(@address.host, @address.port, read_timeout: 60) do |http|
      while running?
        path, body = WORK[index % WORK.size]
        answer = http.post(path, JSON.generate(body), "content-type" => "application/json")
        counts[answer.code] += 1
        sleep 0.05 if answer.code == "429"
        index += 1
      end
    end
    counts
  rescue SystemCallError, IOError, Timeout::Error, Net::ProtocolError => e
    counts.merge(e.class.name => 1)
  end

  # Asks for a long answer and goes away.
  def drop
    counts = Hash.new(0)
    body = JSON.generate(model: "llm", messages: MESSAGES, max_tokens: 40, temperature: 0, stream: true)
    while running?
      socket = TCPSocket.new(@address.host, @address.port)
      socket.write("POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n" \
                   "content-length: #{body.bytesize}\r\n\r\n#{body}")
      sleep 0.01
      socket.close
      counts["dropped"] += 1
    end
    counts
  end
end

puts JSON.generate(LoadClient.new(ARGV[0], ARGV[1].to_f, ARGV[2].to_i).run) if $PROGRAM_NAME == __FILE__
