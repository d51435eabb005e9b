# frozen_string_literal: true

require "rexml/document"
require "tmpdir"
require_relative "../../bench/harness/main"
require_relative "../../bench/harness/document"
require_relative "../../bench/harness/mtmd"

RSpec.describe "bench harness" do
  def outcome(ours, peers, better: :higher, target: Bench::Target.new(ratio: 1.3), unjudged: [], comparisons: [])
    row = { name: "embed", group: "embeddings", title: "embeddings <f32>", unit: "tokens/s", better: better,
            target: target }
    Bench::Outcome.build(row, { Bench::OURS => ours }.merge(peers), unjudged: unjudged, comparisons: comparisons)
  end

  def result(cases)
    Bench::Results.build(cases, versions: { "red-candle" => "2.0" }, threads: 2, seconds: 12.4, whole: true)
  end

  describe Bench::Statistics do
    it "takes the middle, or the mean of the two in the middle" do
      expect(described_class.median([3, 100, 1])).to eq(3.0)
      expect(described_class.median([4, 1, 3, 2])).to eq(2.5)
      expect { described_class.median([]) }.to raise_error(ArgumentError, /no values/)
    end

    it "says how far the extremes lie apart" do
      expect(described_class.spread([90, 100, 120])).to be_within(1e-9).of(0.3)
    end

    it "has a ratio above 1 where ours is better, whatever better means" do
      expect(described_class.ratio(200, 100, better: :higher)).to eq(2.0)
      expect(described_class.ratio(200, 100, better: :lower)).to eq(0.5)
      expect { described_class.ratio(1, 1, better: :faster) }.to raise_error(ArgumentError, /faster/)
    end
  end

  describe Bench::Machine do
    it "names the level of our kernels, the forced one first" do
      stub_const("ENV", { "CANDLE_CPU_ISA" => "avx2" })
      expect(described_class.level).to eq("avx2")
      stub_const("ENV", {})
      levels = [%w[avx2 avx512f avx512_vnni avx512_bf16 amx_bf16 amx_int8 amx_tile], %w[avx2 avx512f avx512_vnni],
                %w[avx2 avx_vnni], []]
      found = levels.map do |flags|
        allow(Bench::Peers).to receive(:cpu_flags).and_return(flags)
        described_class.level
      end
      expect(found).to eq(%w[amx avx512vnni avxvnni scalar])
    end
  end

  describe Bench::Mtmd do
    it "is built of the version of llama.cpp that the peers have, once for each of their builds" do
      allow(Bench::Peers).to receive(:packages).and_return(%w[numpy==2.4.6 llama-cpp-python==0.3.36])
      expect(File.basename(described_class.archive)).to eq("llama_cpp_python-0.3.36.tar.gz")
      expect(described_class.root).to end_with("/llama_cpp_python-0.3.36/vendor/llama.cpp")
      before = described_class.wanted
      allow(Bench::Peers).to receive(:cmake_arguments).and_return(["-DGGML_AVX512=OFF"])
      expect(described_class.wanted).not_to eq(before)
    end
  end

  describe Bench::Comparison do
    def packed(*rows)
      [rows.flatten.pack("e*")].pack("m0")
    end

    it "takes the lowest cosine of all vectors" do
      ours = packed([1.0, 0.0], [0.0, 2.0])
      same = described_class.check(:cosine, ours, packed([2.0, 0.0], [0.0, 1.0]), dimension: 2, at_least: 0.999)
      expect([same.equal, same.value]).to eq([true, 1.0])
      turned = described_class.check(:cosine, ours, packed([1.0, 0.0], [1.0, 1.0]), dimension: 2, at_least: 0.999)
      expect(turned.equal).to be(false)
      expect(turned.value).to be_within(1e-6).of(Math.sqrt(0.5))
    end

    it "refuses another number of vectors" do
      verdict = described_class.check(:cosine, packed([1.0, 0.0]), packed([1.0, 0.0], [1.0, 0.0]), dimension: 2,
                                                                                                   at_least: 0.5)
      expect([verdict.equal, verdict.value]).to eq([false, "1 vectors beside 2"])
    end

    it "takes the greatest difference of scores" do
      expect(described_class.check(:scores, [1.0, 2.0], [1.0, 2.0005], within: 1e-3).equal).to be(true)
      expect(described_class.check(:scores, [1.0, 2.0], [1.0, 2.1], within: 1e-3).equal).to be(false)
      expect(described_class.check(:scores, [1.0], [1.0, 2.0], within: 1e-3).equal).to be(false)
    end

    it "wants the same entities in the same places" do
      ours = [[["PER", 0, 4, 0.9]], []]
      expect(described_class.check(:entities, ours, [[["PER", 0, 4, 0.9001]], []], within: 1e-3).equal).to be(true)
      expect(described_class.check(:entities, ours, [[["PER", 0, 4, 0.8]], []], within: 1e-3).equal).to be(false)
      expect(described_class.check(:entities, ours, [[["PER", 0, 5, 0.9]], []], within: 1e-3).equal).to be(false)
      expect(described_class.check(:entities, ours, [[], [["PER", 0, 4, 0.9]]], within: 1e-3).equal).to be(false)
    end

    it "counts the places that agree" do
      expect(described_class.check(:agreement, [[1, 2], [3]], [[1, 2], [3]]).equal).to be(true)
      expect(described_class.check(:agreement, [[1, 2], [3]], [[1, 2], [4]], at_least: 0.9).equal).to be(false)
      expect(described_class.check(:share, [[1, 2], [3]], [[1, 2], [3, 4]], at_least: 0.5).equal).to be(true)
      expect(described_class.check(:share, [[1, 2], [3]], [[1, 2], [3, 4]], at_least: 0.6).equal).to be(false)
      expect(described_class.check(:share, [[1]], [[1], [2]], at_least: 0.5).equal).to be(false)
    end

    context "with greedy answers" do
      # An answer of tokens 1, then `second`, then something that only it could say.
      def answer(second, others)
        [[[1, -0.5], [9, -2.0]], [second, *others], [[second.first + 100, -0.1], [3, -3.0]]]
      end

      def greedy(ours, theirs)
        described_class.check(:greedy, ours, theirs, within: 0.3)
      end

      let(:ours) { answer([5, -1.0], [[6, -1.1], [7, -1.9]]) }

      it "finds equal ones equal" do
        expect(greedy(ours, ours).to_h).to include(value: 0.0, equal: true)
      end

      it "lets them part where both find the two tokens almost as likely" do
        verdict = greedy(ours, answer([6, -1.0], [[5, -1.25], [7, -2.0]]))
        expect([verdict.equal, verdict.value.round(6)]).to eq([true, 0.25])
      end

      it "refuses a parting that either finds clear" do
        clear = answer([6, -1.0], [[7, -1.3], [5, -1.4]])
        expect([greedy(ours, clear), greedy(clear, ours)].map(&:equal)).to eq([false, false])
        expect(greedy(ours, clear).value).to be_within(1e-9).of(0.4)
      end

      it "refuses a token that the other has not even listed, and a part of an answer" do
        expect(greedy(ours, answer([8, -1.0], [[5, -1.0], [6, -1.2]])).equal).to be(false)
        expect(greedy(ours, ours.first(2)).to_h).to include(value: "3 tokens beside 2", equal: false)
      end
    end

    it "compares log probabilities of the same tokens only" do
      ours = [[5, 6, 7], [nil, -1.0, -2.0]]
      expect(described_class.check(:logprobs, ours, [[5, 6, 7], [-1.05, -2.05]], within: 0.1).equal).to be(true)
      expect(described_class.check(:logprobs, ours, [[5, 6, 7], [-1.5, -2.0]], within: 0.1).equal).to be(false)
      expect(described_class.check(:logprobs, ours, [[5, 6, 8], [-1.0, -2.0]], within: 0.1).equal).to be(false)
    end
  end

  describe Bench::Outcome do
    it "judges by the best of the peers that count" do
      built = outcome([130, 150, 140], { "slow" => [50], "fast" => [100, 100, 100], "other" => [500] },
                      unjudged: ["other"])
      expect(built.values_at("best_peer", "ratio", "status")).to eq(["fast", 1.4, "pass"])
      expect(outcome([120], { "fast" => [100] })["status"]).to eq("miss")
    end

    it "judges our own value where that has a limit" do
      limit = Bench::Target.new(limit: 150)
      expect(outcome([140], { "peer" => [9] }, better: :lower, target: limit)["status"]).to eq("pass")
      expect(outcome([160], { "peer" => [900] }, better: :lower, target: limit)["status"]).to eq("miss")
      expect(outcome([160], {}, target: nil)["status"]).to eq("-")
    end

    it "lets no speed count beside other results" do
      built = outcome([900], { "fast" => [100] }, comparisons: [{ "equal" => false, "measure" => "cosine",
                                                                  "value" => 0.5, "limit" => 0.9, "with" => "fast" }])
      expect(built["status"]).to eq("MISMATCH")
      expect(described_class.wrong?(built)).to be(true)
      expect(Bench::Table.text([built])).to include("MISMATCH: cosine 0.5, limit 0.9 (fast)")
    end
  end

  describe Bench::Table do
    it "shows three digits and thousands" do
      expect([12_345.6, 123.4, 12.34, 1.234, 0.01234, 0].map { |value| described_class.number(value) })
        .to eq(["12,346", "123", "12.3", "1.23", "0.0123", "0"])
    end

    it "has one line per case, with ratio, target and result" do
      built = outcome([140], { "slow" => [50], "fast" => [100] })
      expect(described_class.rows([built])).to eq(
        [["embeddings <f32>", "140 tokens/s", "fast 100 tokens/s", "1.40 ×", "≥ 1.3 ×", "pass", "slow 2.80 ×"]]
      )
      expect(described_class.markdown([built]).lines.size).to eq(3)
    end

    it "keeps the line of a case that failed" do
      row = { name: "embed", group: "embeddings", title: "embeddings", unit: "ms", target: nil }
      expect(described_class.text([Bench::Outcome.failed(row, "worker died: no such file\nmore")]))
        .to include("FAILED", "worker died: no such file")
    end
  end

  describe Bench::Plot do
    let(:cases) { [outcome([200], { "fast" => [100] }), outcome([50], { "fast" => [100] })] }
    let(:picture) { REXML::Document.new(described_class.new(result(cases)).svg) }

    it "is a well-formed picture with one bar per ratio" do
      bars = picture.get_elements("//rect")
      expect(bars.map { |bar| bar.attributes["class"] }).to eq(%w[reached missed])
      expect(picture.root.attributes["viewBox"]).to match(/\A0 0 980 \d+\z/)
    end

    it "draws twice and half equally long, to either side of 1" do
      right, left = picture.get_elements("//rect")
      one = picture.get_elements("//line[@class='one']").first.attributes["x1"].to_f
      expect(right.attributes["x"].to_f).to eq(one)
      expect(left.attributes["x"].to_f + left.attributes["width"].to_f).to be_within(0.2).of(one)
      expect(right.attributes["width"].to_f).to be_within(0.2).of(left.attributes["width"].to_f)
    end

    it "can be read on dark pages, and shows titles as they are" do
      expect(picture.get_elements("//style").first.text).to include("prefers-color-scheme: dark")
      expect(picture.get_elements("//text").map(&:text)).to include("embeddings <f32>", "2.00 × fast")
    end

    it "refuses a run without ratios" do
      expect { described_class.new(result([outcome([1], {}, target: nil)])) }.to raise_error(ArgumentError, /no case/)
    end
  end

  describe Bench::Document do
    it "replaces what lies between the markers, again and again" do
      page = "before\n#{Bench::Document::MARKERS.join("\nold\n")}\nafter\n"
      once = described_class.insert(page, "new")
      expect(once).to eq("before\n#{Bench::Document::MARKERS.join("\nnew\n")}\nafter\n")
      expect(described_class.insert(once, "new")).to eq(once)
    end

    it "refuses a page without markers" do
      expect { described_class.insert("before", "new") }.to raise_error(/needs the lines/)
    end

    context "with what is published" do
      let(:page) { File.read(described_class::PAGE) }
      let(:published) { Bench::Results.read(Bench::Results::PUBLISHED) if File.exist?(Bench::Results::PUBLISHED) }

      it "shows it in table and picture" do
        expect(described_class.insert(page, described_class.current)).to eq(page)
        picture = File.read(described_class::PICTURE) if File.exist?(described_class::PICTURE)
        expect(picture).to eq(published && Bench::Plot.new(published).svg)
      end

      it "says why each missed target is missed" do
        missed = published.to_h.fetch("cases", []).select { |outcome| outcome["status"] == "miss" }
        reasons = page[/^## Missed targets\n(.*?)(?=^## |\z)/m, 1]
        expect(missed.map { |outcome| outcome["title"] }.reject { |title| reasons.include?(title) }).to be_empty
      end
    end
  end

  describe Bench::Results do
    it "names machine, versions and date, and finds the newest whole run" do
      Dir.mktmpdir do |directory|
        expect { described_class.latest(directory: directory) }.to raise_error(/run `rake bench` first/)
        dates = %w[2024-01-01T00:00:00Z 2024-01-02T00:00:00Z 2024-01-03T00:00:00Z]
        paths = dates.zip([true, true, false]).map do |date, whole|
          described_class.write(result([outcome([1], {})]).merge("date" => date, "whole" => whole),
                                directory: directory)
        end
        expect(described_class.latest(directory: directory)).to eq(paths[1])
        read = described_class.read(paths[1])
        expect(read.keys).to eq(%w[date machine threads versions seconds whole cases])
        expect(read["machine"].keys).to include("processor", "cores", "memory_gigabytes", "ruby", "load")
      end
    end
  end
end
