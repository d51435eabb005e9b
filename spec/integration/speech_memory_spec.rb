# frozen_string_literal: true

require "tmpdir"

# The samples of an hour are 230 MB, its features 115 MB: neither may be held.
RSpec.describe "The memory of a long transcription", if: File.readable?("/proc/self/status") do
  rate = 16_000

  # Noise of 8 bits, of which a minute is repeated.
  def write_wav(path, minutes, rate)
    minute = Random.new(5).bytes(60 * rate)
    File.open(path, "wb") do |file|
      size = minutes * minute.bytesize
      file.write("RIFF", [size + 36].pack("V"), "WAVEfmt ", [16, 1, 1, rate, rate, 1, 8].pack("VvvVVvv"),
                 "data", [size].pack("V"))
      minutes.times { file.write(minute) }
    end
  end

  around { |example| Dir.mktmpdir { |directory| Dir.chdir(directory) { example.run } } }

  # @return [Array(Float, Float)] the seconds that were heard, and the most MiB that the process had
  def heard(path)
    output, errors, status = run_ruby(<<~RUBY)
      model = Candle::Transcriber.from_pretrained(#{TinyModels.path("speech/whisper").inspect}, device: "cpu")
      calls = []
      result = model.transcribe(#{path.inspect}, language: "en", temperature: 0, max_new_tokens: 1,
                                condition_on_previous_text: false, progress: ->(*pair) { calls << pair })
      abort "no progress" unless calls.size > 100 && calls == calls.sort && calls.last == [result.duration] * 2
      puts result.duration, File.read("/proc/self/status")[/VmHWM:\\s+(\\d+)/, 1].to_i / 1024.0
    RUBY
    expect(status).to be_success, errors
    output.lines.map(&:to_f)
  end

  it "is that of ten minutes for an hour" do
    { "short.wav" => 10, "long.wav" => 60 }.each { |path, minutes| write_wav(path, minutes, rate) }
    short, hour = %w[short.wav long.wav].map { |path| heard(path) }
    expect([short.first, hour.first]).to eq([600, 3600])
    expect(hour.last - short.last).to be < 24
  end

  # The quickest of three counts: a busy machine delays the thread that interrupts, and the one that is interrupted.
  # What cannot be interrupted delays all of them.
  it "stops at once when its thread is interrupted, while it decodes and while it writes" do
    write_wav("long.wav", 60, rate)
    output, errors, status = run_ruby(<<~RUBY)
      model = Candle::Transcriber.from_pretrained(#{TinyModels.path("speech/whisper").inspect}, device: "cpu")
      now = -> { Process.clock_gettime(Process::CLOCK_MONOTONIC) }
      # Before the first call of progress: the file is decoded. After some calls: windows are written.
      [0, 5].each do |calls|
        puts(Array.new(3) do
          heard = Queue.new
          thread = Thread.new do
            heard << :begun
            model.transcribe("long.wav", language: "en", temperature: 0, progress: ->(*) { heard << :window })
          end
          thread.report_on_exception = false
          (1 + calls).times { heard.pop }
          sleep 0.02
          start = now.call
          thread.raise(Interrupt)
          begin
            thread.join
            abort "it was over after \#{calls} calls"
          rescue Interrupt
            now.call - start
          end
        end.join(" "))
      end
    RUBY
    expect(status).to be_success, errors
    took = output.lines.map { |line| line.split.map(&:to_f) }
    expect(took.map(&:size)).to eq([3, 3])
    expect(took.map(&:min)).to all(be < 0.3)
  end
end
