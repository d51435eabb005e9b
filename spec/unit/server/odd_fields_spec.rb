# frozen_string_literal: true

require_relative "../../../rakelib/support/attack/requests"

RSpec.describe "requests with one odd field" do
  before(:all) do
    @before = Candle.logger
    @requests = HostileRequests.new(File.expand_path("../../fixtures", __dir__))
    @requests.send(:routes)
  end
  after(:all) { Candle.logger = @before }

  let(:known) { Candle::Server::Fields::KNOWN.keys }

  it "are of every path that takes a body, with every field of it" do
    paths = @requests.send(:routes).select { |verb, _| verb == "POST" }.map(&:last) - OddFields::WITHOUT_JSON
    expect(OddFields::BODIES.keys).to match_array(paths)
    expect(known).to match_array(paths)
    paths.each do |path|
      names = OddFields::BODIES.fetch(path).flat_map do |body|
        body.flat_map { |name, value| [name.to_s, *(value.keys.map { |one| "#{name}.#{one}" } if value.is_a?(Hash))] }
      end
      missing = Candle::Server::Fields.of(path).reject do |name|
        names.include?(name) || name.start_with?("parameters.")
      end
      expect([path, missing - ["max_tokens"]]).to eq([path, []])
    end
  end

  it "are right without it" do
    OddFields::BODIES.each do |path, bodies|
      bodies.each do |body|
        answer = post(@requests.instance_variable_get(:@server), path, body)
        # Forms that so few tokens don't fill; a reranker without a query; a batch without its file; adapters
        # without a folder.
        next if answer.text.match?(/output_cut_off|cut off after|query is missing|does not fit/)
        next if answer.text.match?(/there is no file|adapters are fixed/)

        expect([path, body, answer.status, answer.text[0, 300]]).to match([path, body, 200, anything])
      end
    end
  end

  it "are never the server's failure" do
    wrong = []
    count = 0
    @requests.each_odd_field(step: Integer(ENV.fetch("ODD_FIELDS_STEP", "5"))) do |name, error|
      count += 1
      wrong << "#{name} => #{error.message[0, 200]}" if error
    end
    expect(count).to be > 3000
    expect(wrong).to eq([]), "#{wrong.size} of #{count}:\n#{wrong.first(20).join("\n")}"
  end

  it "are known by the fields that the server reads" do
    read = Hash.new { |paths, path| paths[path] = [] }
    recorder = Class.new(Hash) do
      attr_accessor :names

      %i[[] key? dig fetch].each do |method|
        define_method(method) do |name, *more, &block|
          names << name
          super(name, *more, &block)
        end
      end

      def slice(*given)
        names.concat(given)
        super
      end
    end
    allow_any_instance_of(Candle::Server::Request).to receive(:json).and_wrap_original do |original|
      path = original.receiver.path
      recorder.new.merge!(original.call).tap { |hash| hash.names = read[path] }
    end
    OddFields::BODIES.each do |path, bodies|
      bodies.each { |body| post(@requests.instance_variable_get(:@server), path, body) }
    end
    known.each do |path|
      unknown = read[path].uniq - Candle::Server::Fields.of(path) - ["metadata"]
      expect([path, unknown]).to eq([path, []])
    end
  end
end
