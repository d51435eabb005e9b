# frozen_string_literal: true

require "timeout"

RSpec.describe Candle::Server::Gate do
  let(:gate) { described_class.new(running: 2, waiting: 4) }
  let(:connection) { Candle::Server::Connection.new({}) }
  let(:later) { Process.clock_gettime(Process::CLOCK_MONOTONIC) + 60 }
  # As rack-timeout and web servers raise it in the thread of a request.
  let(:ended) { Class.new(Exception) } # rubocop:disable Lint/InheritException

  before { allow(Candle.logger).to receive(:error) }

  it "gives a place back whatever ends the block" do
    expect { gate.hold(connection, later) { raise ended } }.to raise_error(ended)
    expect { gate.pass(connection, later) { raise NotImplementedError } }.to raise_error(NotImplementedError)
    catch(:out) { gate.pass(connection, later) { throw :out } }
    catch(:out) { gate.hold(connection, later) { throw :out } }
    expect(gate.running).to eq(0)
    leave = gate.pass(connection, later) { |given| given }
    expect(gate.running).to eq(1)
    2.times { leave.call }
    expect(gate.running).to eq(0)
  end

  it "loses no place to exceptions that come from other threads at any moment" do
    reports = Thread.report_on_exception
    Thread.report_on_exception = false
    random = Random.new(7)
    deadline = now + 5
    600.times do |number|
      break if now > deadline

      requests = Array.new(4) do
        Thread.new do
          gate.hold(connection, later) { sleep(0.0005) }
        rescue ended
          nil
        end
      end
      sleep(random.rand * 0.001)
      requests.each { |thread| number.even? ? thread.raise(ended) : thread.kill }
      requests.each(&:join)
    rescue ThreadError, ended
      nil
    end
    expect([gate.running, gate.waiting]).to eq([0, 0])
  ensure
    Thread.report_on_exception = reports
  end

  # Ruby's errors outside StandardError.
  [NoMemoryError.new("x"), NotImplementedError.new("x"), SystemStackError.new("x"), LoadError.new("x")].each do |error|
    it "is not closed by answers that end in a #{error.class}" do
      broken = Class.new(ServedModels::Scripted) { define_method(:complete) { |*, **| raise error } }.new("x")
      server = Candle::Server.new(models: { "llm" => { source: broken, kind: :llm } })
      body = { model: "llm", messages: [{ role: "user", content: "x" }] }
      statuses = [true, false].flat_map do |stream|
        Array.new(6) { post(server, "/v1/chat/completions", body.merge(stream: stream)).status }
      end
      expect(statuses).to all(eq(500))
      expect(get(server, "/metrics").text).to include("candle_running 0", "candle_waiting 0")
    end
  end

  it "is not closed by a timeout that ends the request's thread" do
    server, llm = ServedModels.scripted("a b c", pause: 0.3)
    body = JSON.generate(model: "llm", stream: true, messages: [{ role: "user", content: "x" }])
    10.times do
      expect do
        Timeout.timeout(0.02, ended) do
          server.call("REQUEST_METHOD" => "POST", "PATH_INFO" => "/v1/chat/completions",
                      "rack.input" => StringIO.new(body))
        end
      end.to raise_error(ended)
    end
    expect(get(server, "/metrics").text).to include("candle_running 0")
    expect(llm.finished).to eq(llm.asked.size)
  end
end
